"""The prefix cache outside the cells: rows are kept beside the requests, and read for new ones.

When a request ends, the loop notes which cells have the rows of its tokens; once these are
computed, a thread copies them while other requests run. A row that was overwritten meanwhile shows
by its cell's generation, which changes before anything is written to the cell: the copy is then
left out.

When a prompt's beginning is longer there than in the cells, the loop allocates cells for the rest,
a thread fills them, and the loop inserts them into the prefix tree before the request starts.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from tampu.kvcache import AttentionGroup
from tampu.kvcache.adoption import Adoption, adopt
from tampu.kvcache.block_file import PrefixTokens, Present
from tampu.kvcache.block_index import BlockIndex, KeptBlock, spans
from tampu.ml.threads import usable_cpus
from tampu.runner.row_copies import Cells, RowCopies
from tampu.runner.sequence import Sequence
from tampu.threads import Threads

log = logging.getLogger("tampu.runner")

BLOCK = 256
"""Tokens of a block, at most."""

MIN_TOKENS = 128
"""Reading fewer tokens is not worth it, nor is keeping a sequence of fewer."""

_MIN_BLOCK = 32  # tokens of a block at the end of a sequence, at least
_MAX_WAITING = 64  # sequences that wait to be written; others are not kept
_NICE = 10  # of the thread that writes
_MAX_FILLERS = 4  # threads that read blocks at once


@dataclass(slots=True, eq=False)
class Restoration:
    """A sequence whose beginning is read before it starts.

    Attributes:
        sequence: that waits.
        tokens: of its prompt.
        blocks: its longest beginning that was kept.
        adoption: the cells to fill; None until they are allocated, and if none are read.
        end: how many have rows once it is done.
        is_read: whether it is done.
    """

    sequence: Sequence
    tokens: PrefixTokens
    blocks: list[KeptBlock]
    adoption: Adoption | None = None
    end: int = 0
    is_read: bool = False


@dataclass(slots=True)
class PrefixKeeper:
    """Keeps the rows of sequences that end, and reads them back.

    Attributes:
        copies: copies rows; its manager is used on the loop's thread only, but for generations.
        blocks: that are kept.
        pending: restorations that are being read.
    """

    copies: RowCopies
    blocks: BlockIndex
    pending: list[Restoration] = field(default_factory=list)
    _noted: list[tuple[PrefixTokens, Cells, Cells]] = field(default_factory=list)
    _waiting: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _writer: Threads = field(default_factory=lambda: Threads(1, "tampu-keep-rows", _be_nice))
    _reader: Threads = field(default_factory=lambda: Threads(1, "tampu-read-rows"))
    _fillers: Threads = field(
        default_factory=lambda: Threads(
            min(_MAX_FILLERS, len(usable_cpus()) or 1), "tampu-fill-rows"
        )
    )

    @property
    def is_idle(self) -> bool:
        """Whether all that was noted is written, and nothing is being read."""
        return not self._waiting and not self.pending

    # -- writing ---------------------------------------------------------------------------------

    def released(self, sequence: Sequence) -> None:
        """Note the rows of a sequence that has ended; on the loop's thread."""
        count = min(sequence.read, sequence.length)
        if count < MIN_TOKENS or sequence.collector is not None or self._waiting >= _MAX_WAITING:
            return
        if not _is_shared(sequence):
            return
        keys = sequence.keys[:count].copy()
        tokens = self.copies.tokens(keys, sequence.lora)
        if tokens is None:
            return
        refs = self.copies.manager.prefixes.cached(keys)
        with self._lock:
            self._waiting += 1
        self._noted.append((tokens, refs[0], refs[1]))

    def computed(self) -> None:
        """Copy what was noted: the step that was computing then is done; on the loop's thread.

        The tree may have rows of that step, of another sequence with the same tokens.
        """
        for noted in self._noted:
            self._writer.submit(self._keep, *noted)
        self._noted.clear()

    def _keep(
        self,
        tokens: PrefixTokens,
        cells: Cells,
        generations: Cells,
    ) -> None:
        try:
            self._write(tokens, cells, generations)
        except Exception:  # a fault here must not cost later requests their rows
            log.exception("prefix cache: rows of a sequence were not kept")
        finally:
            with self._lock:
                self._waiting -= 1

    def _write(
        self,
        tokens: PrefixTokens,
        cells: Cells,
        generations: Cells,
    ) -> None:
        """Write the blocks of a sequence that are not kept, or with fewer rows."""
        present, cuts = self.copies.chosen(cells)
        count = present.shape[1]
        if count < MIN_TOKENS:
            return
        tokens = replace(tokens, keys=tokens.keys[:count])
        chain = self.blocks.find(tokens)
        self.blocks.use(chain)
        for index, block in enumerate(chain):
            span = (block.start, block.end)
            if int(present[:, block.start : block.end].sum()) > block.rows:
                before = chain[:index]
                again = self._write_block(tokens, before, span, present, cells, generations)
                chain[index] = again or block
        at = chain[-1].end if chain else 0
        for span in spans(at, count, cuts, BLOCK):
            if span[1] == count and span[1] - span[0] < _MIN_BLOCK and count not in cuts:
                break
            written = self._write_block(tokens, chain, span, present, cells, generations)
            if written is None:
                break
            chain.append(written)
        self.blocks.use(chain)

    def _write_block(
        self,
        tokens: PrefixTokens,
        before: list[KeptBlock],
        span: tuple[int, int],
        present: Present,
        cells: Cells,
        generations: Cells,
    ) -> KeptBlock | None:
        """Copy the rows of a block and write it; None if they have changed or it is not kept."""
        copies = self.copies.copy(cells, generations, present, span)
        if copies is None:
            return None
        return self.blocks.write(tokens, before, span, present[:, slice(*span)], copies)

    # -- reading ---------------------------------------------------------------------------------

    def find(self, sequence: Sequence) -> Restoration | None:
        """Return what may be read for a new sequence; None if it is not worth it. Any thread may.

        The last token of a prompt is computed in any case: its logits are needed.
        """
        end = sequence.reusable_end
        if not _is_shared(sequence) or end < MIN_TOKENS:
            return None
        tokens = self.copies.tokens(sequence.keys[:end].copy(), sequence.lora)
        blocks = self.blocks.find_beginning(tokens) if tokens else []
        if tokens is None or not blocks or blocks[-1].used < MIN_TOKENS:
            return None
        return Restoration(sequence, tokens, blocks)

    def begin(self, found: Restoration, done: Callable[[Restoration], None]) -> bool:
        """Begin to read rows, on the loop's thread; False: there is nothing to gain.

        Args:
            found: by `find`.
            done: is called from another thread, once it can be finished.
        """
        present = self._present(found)
        if present is None:
            return False
        keys = found.tokens.keys[: present.shape[1]]
        adoption = adopt(self.copies.manager, keys, present, MIN_TOKENS)
        if adoption is None:
            return False
        found.adoption, found.end = adoption, adoption.table.length
        self.pending.append(found)

        def read() -> None:
            try:
                found.end = self._read(found, adoption)
            except Exception:  # the request still runs: all of its prompt is computed
                log.exception("prefix cache: rows were not read")
                found.end = adoption.start
            found.is_read = True
            done(found)

        self._reader.submit(read)
        return True

    def finish(self, found: Restoration) -> None:
        """Insert the rows that were read into the prefix tree, on the loop's thread."""
        if found.adoption is None:
            return
        self.pending.remove(found)
        found.adoption.finish(found.end)
        found.adoption = None

    def close(self) -> None:
        """Wait until all rows are written; nothing may be computing."""
        self.computed()
        self._reader.shutdown(cancel_futures=True)
        self._fillers.shutdown()
        self._writer.shutdown()

    def _present(self, found: Restoration) -> Present | None:
        """Return which rows of a sequence's beginning were kept, (groups, n)."""
        groups = self.copies.manager.groups
        if all(isinstance(group, AttentionGroup) for group in groups):
            return np.ones((len(groups), found.blocks[-1].used), np.bool_)
        masks: list[Present] = []
        for block in found.blocks:
            description = self.blocks.describe(block)
            if description is None or len(description.present) != len(groups):
                break
            masks.append(description.mask()[:, : block.used - block.start])
        return np.concatenate(masks, axis=1) if masks else None

    def _read(self, found: Restoration, adoption: Adoption) -> int:
        """Fill the cells of a restoration; return up to which position all could be read."""
        blocks = [block for block in found.blocks if block.start < found.end]
        self.blocks.use(blocks)
        missing = [block for block in blocks if block.used > adoption.start]
        # Reading, checking and copying release Python's lock.
        ends = [*self._fillers.map(partial(self._fill, found, adoption), missing)]
        return next((end for end in ends if end is not None), found.end)

    def _fill(self, found: Restoration, adoption: Adoption, block: KeptBlock) -> int | None:
        """Fill the cells of one block; if that cannot be, return up to where there are rows."""
        table = adoption.table
        span = (max(block.start, adoption.start), min(block.used, found.end))
        read = self.blocks.read(
            found.tokens, block, partial(self.copies.memory, table, block.start, span)
        )
        if read is None:
            return span[0]
        present, data = read
        if data is None or self.copies.fill(table, block.start, span, present, data):
            return None
        return span[0]


def _be_nice() -> None:
    """Let this thread give way to those that compute."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def _is_shared(sequence: Sequence) -> bool:
    """Return whether other sequences may have a sequence's rows."""
    has_keys = not sequence.lora.adapters or sequence.lora.key_offset != 0
    return has_keys and not sequence.cell_table.is_private
