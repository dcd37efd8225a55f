"""Explicit copies of one conversation's rows in a file, and their way back into the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from tampu.engine.input_processor import InputProcessor, Prompt
from tampu.engine.management import SlotAction
from tampu.engine.model_loader import LoadedModel
from tampu.errors import RequestError, SnapshotError
from tampu.kvcache.adoption import adopt
from tampu.kvcache.block_file import CacheKey, PrefixTokens, block_parts
from tampu.kvcache.block_index import spans
from tampu.kvcache.snapshot_file import SnapshotBlock, check_head, head_of, read_blocks, tokens_of
from tampu.ml.atomic_file import atomic_file
from tampu.runner.kv_copies import KVCopies
from tampu.runner.kv_offload import BLOCK
from tampu.runner.loop import EngineLoop


@dataclass(frozen=True, slots=True)
class Saved:
    """What a snapshot has.

    Attributes:
        tokens: how many have rows in it.
        size_bytes: of its file.
    """

    tokens: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Snapshots:
    """Saves and restores rows of the cache of one engine. Any thread may call it.

    Attributes:
        key: of the model as it is loaded.
        copies: copies rows.
        loop: runs what needs the cells.
        keys_of: returns what the prefix tree has for a prompt.
        recent: the tokens of the last request of each slot; for the loop's thread.
        slots: how many there are.
    """

    key: CacheKey
    copies: KVCopies
    loop: EngineLoop
    keys_of: Callable[[Prompt], npt.NDArray[np.int32]]
    recent: dict[int, npt.NDArray[np.int32]]
    slots: int

    @classmethod
    def of(cls, model: LoadedModel, loop: EngineLoop, inputs: InputProcessor) -> Self:
        """Return those of a model that runs."""
        recent, slots = model.scheduler.recent, model.slots
        return cls(model.key, model.copies, loop, inputs.keys, recent, slots)

    def save(self, prompt: Prompt, path: str | Path) -> Saved:
        """Write the rows that the cache has of a prompt's beginning to a file.

        Args:
            prompt: text, token ids, or `Engine.chat_prompt` of a conversation.
            path: of the file; an existing one is replaced.

        Raises:
            RequestError: if nothing of it is cached, or its rows were overwritten meanwhile.
            SnapshotError: if the file cannot be written.
        """
        return self.save_keys(self.keys_of(prompt), Path(path))

    def act_on_slot(self, action: SlotAction, slot: int, path: Path) -> Saved:
        """Save the conversation that a slot had last, restore one to a slot, or drop its rows.

        Args:
            action: what to do.
            slot: from 0; a request gets the first one that is free.
            path: of the file.

        Raises:
            RequestError: if the slot does not exist or has had no request; and as `save`.
            SnapshotError: as `restore`.
        """
        if not 0 <= slot < self.slots:
            raise RequestError(f"there is no slot {slot}: this model has {self.slots}, from 0")
        if action == "restore":
            keys, restored = self.restore_keys(path)
            self.loop.call(lambda: self.recent.update({slot: keys}))
            return restored
        found = self.loop.call(lambda: self.recent.get(slot))
        if found is None:
            raise RequestError(f"slot {slot} has had no request")
        if action == "save":
            return self.save_keys(found, path)
        return Saved(self.loop.call(lambda: self._forgotten(slot)), 0)

    def _forgotten(self, slot: int) -> int:
        return self.copies.manager.prefixes.forget(self.recent.pop(slot, np.empty(0, np.int32)))

    def save_keys(self, keys: npt.NDArray[np.int32], path: Path) -> Saved:
        """Do the same for tokens, those of images and sounds as the prefix tree has them."""
        tokens = self.copies.tokens(keys)
        cells, generations = self.loop.call(lambda: self.copies.manager.prefixes.cached(keys))
        self.loop.call(lambda: None)  # the step that was computing some of these rows is done
        present, cuts = self.copies.chosen(cells)
        count = present.shape[1]
        if tokens is None or not count:
            raise RequestError("nothing of this conversation is in the cache: ask for it first")
        parent = self.key.digest
        if not path.name:
            raise SnapshotError(f"{str(path)!r} is a folder, not a file")
        try:
            with atomic_file(path, mode=0o600, is_durable=False) as file:
                size = file.write(head_of(self.key))
                for span in spans(0, count, cuts, BLOCK):
                    rows = self.copies.copy(cells, generations, present, span)
                    if rows is None:
                        raise RequestError("rows of this conversation were overwritten: ask again")
                    identity = tokens.identity(*span)
                    for part in block_parts(parent, identity, present[:, slice(*span)], rows):
                        size += file.write(part)
                    parent = tokens.digest(parent, *span)
        except OSError as error:
            raise SnapshotError(f"{path.name} cannot be written: {error.strerror}") from error
        return Saved(count, size)

    def restore(self, path: str | Path) -> Saved:
        """Read a snapshot back into the cache; a prompt with the same beginning uses its rows.

        Raises:
            SnapshotError: if the file is missing, damaged, or of another model: with what differs.
            RequestError: if it is longer than the cache has free cells for.
        """
        return self.restore_keys(Path(path))[1]

    def restore_keys(self, path: Path) -> tuple[npt.NDArray[np.int32], Saved]:
        """Do the same, and return the tokens as the prefix tree has them, too."""
        try:
            with path.open("rb") as file:
                check_head(file, self.key)
                blocks = [*read_blocks(file, self.key)]
            size = path.stat().st_size
        except SnapshotError as error:
            raise SnapshotError(f"{path.name}: {error}") from error
        except FileNotFoundError:
            raise SnapshotError(f"snapshot {path.name} not found") from None
        except OSError as error:
            raise SnapshotError(f"{path.name} cannot be read: {error.strerror}") from error
        descriptions = [block.description for block in blocks]
        if any(len(each.present) != len(self.copies.manager.groups) for each in descriptions):
            raise SnapshotError(f"{path.name}: the snapshot is of another model")
        digests = {digest for each in descriptions for _, _, digest in each.media()}
        numbers = {digest: self.copies.encoder_cache.number_of(digest) for digest in digests}
        tokens = tokens_of(descriptions, numbers)
        if blocks:
            self._fill(tokens, blocks)
        return tokens.keys, Saved(len(tokens), size)

    def _fill(self, tokens: PrefixTokens, blocks: list[SnapshotBlock]) -> None:
        """Put the rows of blocks where the tokens have none."""
        manager, keys = self.copies.manager, tokens.keys
        present = np.concatenate([block.description.mask() for block in blocks], axis=1)
        adopted = self.loop.call(lambda: adopt(manager, keys, present, 1))
        if adopted is None:
            if self.loop.call(lambda: manager.prefixes.cached(keys)).shape[2] == len(keys):
                return
            raise RequestError(f"the cache has no room for {len(keys)} tokens now")
        table, end = adopted.table, adopted.start
        try:
            for block in blocks:
                span = (max(block.start, adopted.start), block.start + block.description.tokens)
                if span[0] < min(span[1], table.length):
                    span = (span[0], min(span[1], table.length))
                    mask = block.description.mask()
                    if not self.copies.fill(table, block.start, span, mask, block.rows):
                        raise SnapshotError("the snapshot is of another model")
                    end = span[1]
        finally:
            self.loop.call(lambda: adopted.finish(end))
