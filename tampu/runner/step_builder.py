"""Builds a step: gives its tokens cells and outputs, within a budget.

`Scheduler` adds sequences in the order of their urgency; each gets what the budget has left.
"""

from __future__ import annotations

from dataclasses import dataclass

from tampu.kvcache import KVCacheManager
from tampu.runner.batch import BatchPart
from tampu.runner.encoder_cache import EncoderCache
from tampu.runner.sequence import Sequence


@dataclass(slots=True)
class StepBudget:
    """What a step may still compute.

    A step in which two streams decode, with 128 tokens, 8 outputs, and 10 tokens for offline
    requests (each waiting prompt has an output after its last token):

                                         tokens  offline  outputs
        at first                            128       10        8
        two streams take a token each       126       10        6
        a live prompt of 100 tokens          26       10        5
        an offline prompt of 50 takes 10     16        0        5   the rest is for later steps

    Attributes:
        tokens: of all sequences.
        offline: how many of them may be of offline requests.
        outputs: logits or hidden states of tokens.
        has_prompt: whether tokens of a prompt were taken.
    """

    tokens: int
    offline: int
    outputs: int
    has_prompt: bool = False

    def take(self, tokens: int, outputs: int, *, is_prompt: bool, is_offline: bool) -> None:
        """Take what a sequence needs."""
        self.tokens -= tokens
        self.outputs -= outputs
        if is_offline:
            self.offline -= tokens
        self.has_prompt |= is_prompt

    def for_prompt(self, *, is_offline: bool) -> int:
        """Return how many tokens of a prompt are left.

        However many sequences decode, the first prompt gets a token, so that it does not starve.
        """
        tokens = self.tokens if self.has_prompt else max(self.tokens, 1)
        return min(tokens, self.offline) if is_offline else tokens


class StepBuilder:
    """A step being planned.

    Attributes:
        budget: what is left.
        wants_logits: whether its outputs are logits, else hidden states.
        parts: the tokens of each sequence.
        outputs: the rows of tokens that have an output.
        lacks_cells: whether a sequence was left out, or a part is short, for want of cells.
        postponed: the first prompt whose next tokens must be together, and did not fit.
    """

    def __init__(
        self,
        kv_manager: KVCacheManager,
        encoder_cache: EncoderCache,
        budget: StepBudget,
        *,
        wants_logits: bool,
    ) -> None:
        """Start without tokens."""
        self.budget = budget
        self.wants_logits = wants_logits
        self.parts: list[BatchPart] = []
        self.outputs: list[int] = []
        self.lacks_cells = False
        self.postponed: Sequence | None = None
        self._rows = 0
        self._results: dict[int, int] = {}  # the output of a prompt's last token, by its cell
        self._kv_manager = kv_manager
        self._encoder_cache = encoder_cache

    def add(self, sequence: Sequence, count: int, drafts: tuple[int, ...] = ()) -> bool:
        """Add a sequence's next tokens and drafts; return False if there are too few cells.

        Example: the step has 5 rows; of a prompt of 7 tokens 4 are computed, and its last one has
        the only output. Its 3 tokens get the rows 5 to 7, and the output is that of row 7.
        """
        start, is_last = sequence.computed, sequence.uncomputed == count
        if count == 0:
            return True
        count += len(drafts)
        is_prompt, table = sequence.is_prefilling, sequence.cell_table
        known = sequence.keys[: sequence.length]
        if not self._kv_manager.append(
            table, count, known, is_prompt=is_prompt, drafts=len(drafts)
        ):
            self.lacks_cells |= not drafts
            return False
        row, first = self._rows, len(self.outputs)
        if sequence.wants_rows and start < sequence.prompt_length:
            without = min(max(sequence.first_output - start, 0), count)
            until = min(sequence.output_end - start, count)
            self.outputs.extend(range(row + without, row + until))
        elif is_last:
            self.outputs.extend(range(row + count - 1 - len(drafts), row + count))
        outputs = len(self.outputs) - first
        self.parts.append(
            BatchPart(sequence, row, start, count, first, outputs, is_last, is_prompt, drafts)
        )
        sequence.drafts = drafts
        self._rows += count
        self.budget.take(count, outputs, is_prompt=is_prompt, is_offline=sequence.is_offline)
        if is_prompt:
            self._kv_manager.insert(table, known)
            if is_last and not table.is_private:
                self._results[table.last_cell()] = len(self.outputs) - 1
        return True

    def add_next(self, sequence: Sequence, drafts: tuple[int, ...]) -> None:
        """Add the next token of an answer with guesses of those after it, if they have cells."""
        if not (drafts and self.add(sequence, 1, drafts)):
            self.add(sequence, 1)

    def add_prompt(self, sequence: Sequence) -> None:
        """Add as many tokens of a prompt as fit, after reusing its cached prefix."""
        reuse_prefix(self._kv_manager, sequence)
        if self._share_result(sequence):
            return
        count = self._prompt_tokens(sequence)
        if not self.add(sequence, count):
            left = min(self._kv_manager.available, count)
            self.add(sequence, sequence.layout.fitting(sequence.computed, left))

    def fits(self, sequence: Sequence, max_tokens: int, others: int) -> bool:
        """Return whether there is room for all tokens of a waiting prompt that are not cached.

        Args:
            sequence: of the prompt.
            max_tokens: the maximum number of tokens in a step.
            others: how many cells must be left for other sequences.
        """
        table, reusable = sequence.cell_table, sequence.keys[: sequence.reusable_end]
        outputs = sequence.output_end - sequence.first_output if sequence.wants_rows else 1
        if sequence.wants_logits is not self.wants_logits:
            return False
        cached, has_cells = self._kv_manager.fits(
            table, reusable, sequence.length, max_tokens, others
        )
        wanted = sequence.length - cached
        has_tokens = wanted <= self.budget.for_prompt(is_offline=sequence.is_offline)
        return has_cells and has_tokens and outputs <= self.budget.outputs

    def _share_result(self, sequence: Sequence) -> bool:
        """Let a sequence use the output of another one that has the same tokens."""
        if sequence.uncomputed != 1 or sequence.generated:
            return False
        if sequence.wants_rows or sequence.capture:
            return False
        start, table = sequence.computed, sequence.cell_table
        key = sequence.keys[start : start + 1]
        output = self._results.get(self._kv_manager.prefixes.next_cell(table, key))
        if output is None:
            return False
        self._kv_manager.match_prefix(table, key)
        sequence.cached += 1
        self.parts.append(BatchPart(sequence, self._rows, start + 1, 0, output, 1, is_last=True))
        return True

    def _prompt_tokens(self, sequence: Sequence) -> int:
        """Return how many tokens of a prompt fit.

        Tokens of an image that attend to one another are in one step. Example: of 10 tokens left
        those at 4 to 7 are an image. With room for 6 the first 4 are computed; the next step begins
        with the image, whole, even if it is larger than a step. If other prompts were before it,
        it is the first of the step after (`postponed`).
        """
        start, limit = sequence.computed, sequence.uncomputed
        if (placed := self._encoder_cache.missing(sequence.layout, start)) is not None:
            limit = min(limit, sequence.layout.needed_from(placed) - start)
        room = self._prompt_room(sequence)
        count = sequence.layout.fitting(start, min(room, limit))
        whole = sequence.layout.whole(start)
        if count > 0 or whole == 1 or whole > limit:
            return max(count, 0)
        if not self.budget.has_prompt:
            return whole
        self.postponed = self.postponed or sequence
        return 0

    def _prompt_room(self, sequence: Sequence) -> int:
        """Return for how many tokens of a prompt the budget has room, with their outputs."""
        left, room = self.budget.outputs, self.budget.for_prompt(is_offline=sequence.is_offline)
        if left <= 0:
            return 0
        chunk = sequence.chunk
        if not sequence.wants_rows:
            return min(room, chunk or room)
        without = max(sequence.first_output - sequence.computed, 0)
        with_output = left if sequence.output_end == sequence.prompt_length else room
        return min(room, without + with_output, chunk or room)


def reuse_prefix(kv_manager: KVCacheManager, sequence: Sequence) -> None:
    """Reuse cached cells of a sequence's next tokens, except those that have an output."""
    start, end = sequence.computed, sequence.reusable_end
    count = kv_manager.match_prefix(sequence.cell_table, sequence.keys[start:end])
    if sequence.generated == 0 and not sequence.was_preempted:
        sequence.cached += count
