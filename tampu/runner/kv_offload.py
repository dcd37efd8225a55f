"""Offloads keys, values and states of sequences that end to disk or memory, and restores them.

When a request ends, its cells are noted; once they are computed, a thread copies them while other
requests run. A cell that was written again meanwhile has another generation, which changes before
anything is written to it: the copy is then left out.

When the beginning of a prompt is stored farther than it is cached, the loop allocates cells for the
rest, threads fill them, and the loop inserts them into the prefix tree before the request waits.
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
from tampu.kvcache.block_index import BlockIndex, StoredBlock, spans
from tampu.ml.threads import usable_cpus
from tampu.runner.kv_connector import KVConnector, KVLoad
from tampu.runner.kv_copies import Cells, KVCopies
from tampu.runner.sequence import Sequence
from tampu.threads import Threads

log = logging.getLogger("tampu.runner")

BLOCK = 256
"""Tokens of a block, at most."""

MIN_TOKENS = 128
"""Loading fewer tokens is not worth it, nor is storing a sequence of fewer."""

_MIN_BLOCK = 32  # tokens of a block at the end of a sequence, at least
_MAX_WAITING = 64  # sequences that wait to be stored; others are not
_NICE = 10  # of the thread that writes
_MAX_FILLERS = 4  # threads that read blocks at once


@dataclass(slots=True, eq=False)
class _BlockLoad(KVLoad):
    """A sequence whose beginning is in blocks.

    Attributes:
        tokens: of its prompt.
        blocks: the longest beginning that is stored.
        adoption: the cells to fill; None until they are allocated.
        end: how many tokens are cached once it is done.
    """

    tokens: PrefixTokens
    blocks: list[StoredBlock]
    adoption: Adoption | None = None
    end: int = 0


@dataclass(frozen=True, slots=True)
class _Stored:
    """Tokens to store.

    Attributes:
        tokens: that have cells.
        cells: (groups, n): theirs; NO_CELL: not cached.
        generations: (groups, n): of the cells.
        present: (groups, n): which cells are stored.
    """

    tokens: PrefixTokens
    cells: Cells
    generations: Cells
    present: Present


@dataclass(slots=True)
class KVOffload(KVConnector):
    """Stores the cells of sequences that end as blocks.

    Attributes:
        copies: copies cells; its manager is used on the loop's thread only, but for generations.
        blocks: that are stored.
    """

    copies: KVCopies
    blocks: BlockIndex
    _loads: list[_BlockLoad] = field(default_factory=list)
    _noted: list[tuple[PrefixTokens, Cells, Cells]] = field(default_factory=list)
    _waiting: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _writer: Threads = field(default_factory=lambda: Threads(1, "tampu-kv-store", _be_nice))
    _reader: Threads = field(default_factory=lambda: Threads(1, "tampu-kv-load"))
    _fillers: Threads = field(
        default_factory=lambda: Threads(min(_MAX_FILLERS, len(usable_cpus()) or 1), "tampu-kv-fill")
    )

    @property
    def is_idle(self) -> bool:
        """Whether all that was noted is stored, and nothing is being loaded."""
        return not self._waiting and not self._loads

    # -- storing ---------------------------------------------------------------------------------

    def released(self, sequence: Sequence) -> None:
        """Note the cells of a sequence that has ended."""
        count = min(sequence.read, sequence.length)
        if count < MIN_TOKENS or sequence.collector is not None or self._waiting >= _MAX_WAITING:
            return
        tokens = self._tokens(sequence, count)
        if tokens is None:
            return
        cells, generations = self.copies.manager.prefixes.cached(tokens.keys)
        with self._lock:
            self._waiting += 1
        self._noted.append((tokens, cells, generations))

    def step_done(self) -> None:
        """Begin to store what was noted.

        The tree may have cells of the step that was computing, of another sequence with the same
        tokens.
        """
        for noted in self._noted:
            self._writer.submit(self._store, *noted)
        self._noted.clear()

    def _store(self, tokens: PrefixTokens, cells: Cells, generations: Cells) -> None:
        try:
            present, cuts = self.copies.chosen(cells)
            count = present.shape[1]
            if count >= MIN_TOKENS:
                tokens = replace(tokens, keys=tokens.keys[:count])
                self._store_blocks(_Stored(tokens, cells, generations, present), cuts)
        except Exception:  # a fault here must not cost later requests what is stored
            log.exception("prefix cache: a sequence was not stored")
        finally:
            with self._lock:
                self._waiting -= 1

    def _store_blocks(self, stored: _Stored, cuts: list[int]) -> None:
        """Store the blocks that are not stored yet, or with fewer cells."""
        chain = self.blocks.find(stored.tokens)
        self.blocks.use(chain)
        for index, block in enumerate(chain):
            if int(stored.present[:, block.start : block.end].sum()) > block.rows:
                again = self._store_block(stored, chain[:index], (block.start, block.end))
                chain[index] = again or block
        start, count = chain[-1].end if chain else 0, len(stored.tokens)
        for span in spans(start, count, cuts, BLOCK):
            if span[1] == count and span[1] - span[0] < _MIN_BLOCK and count not in cuts:
                break
            made = self._store_block(stored, chain, span)
            if made is None:
                break
            chain.append(made)
        self.blocks.use(chain)

    def _store_block(
        self, stored: _Stored, before: list[StoredBlock], span: tuple[int, int]
    ) -> StoredBlock | None:
        """Copy the cells of a block and store it; None if they have changed or it has no room."""
        copies = self.copies.copy(stored.cells, stored.generations, stored.present, span)
        if copies is None:
            return None
        present = stored.present[:, slice(*span)]
        return self.blocks.write(stored.tokens, before, span, present, copies)

    # -- loading ---------------------------------------------------------------------------------

    def lookup(self, sequence: Sequence) -> KVLoad | None:
        """Return which blocks can be loaded for a new sequence."""
        end = sequence.reusable_end
        tokens = self._tokens(sequence, end) if end >= MIN_TOKENS else None
        blocks = self.blocks.find_beginning(tokens) if tokens else []
        if tokens is None or not blocks or blocks[-1].used < MIN_TOKENS:
            return None
        return _BlockLoad(sequence, tokens, blocks)

    def load(self, load: KVLoad, done: Callable[[KVLoad], None]) -> bool:
        """Begin to read blocks; or insert them into the prefix tree, if they have been read."""
        if not isinstance(load, _BlockLoad):
            return False
        if load.adoption is not None:
            self._loads.remove(load)
            load.adoption.finish(load.end)
            return False
        present = self._present(load)
        if present is None:
            return False
        keys = load.tokens.keys[: present.shape[1]]
        adoption = adopt(self.copies.manager, keys, present, MIN_TOKENS)
        if adoption is None:
            return False
        load.adoption, load.end = adoption, adoption.table.length
        self._loads.append(load)
        self._reader.submit(self._read, load, adoption, done)
        return True

    def pending(self) -> list[Sequence]:
        """Return the sequences whose blocks are being read."""
        return [load.sequence for load in self._loads]

    def close(self) -> None:
        """Wait until all is stored."""
        self.step_done()
        self._reader.shutdown(cancel_futures=True)
        self._fillers.shutdown()
        self._writer.shutdown()

    def _read(self, load: _BlockLoad, adoption: Adoption, done: Callable[[KVLoad], None]) -> None:
        """Fill the cells of a load, up to where all blocks can be read."""
        try:
            blocks = [block for block in load.blocks if block.start < load.end]
            self.blocks.use(blocks)
            missing = [block for block in blocks if block.used > adoption.start]
            # Reading, checking and copying release Python's lock.
            ends = [*self._fillers.map(partial(self._fill, load, adoption), missing)]
            load.end = next((end for end in ends if end is not None), load.end)
        except Exception:  # the request still runs: all of its prompt is computed
            log.exception("prefix cache: blocks were not read")
            load.end = adoption.start
        done(load)

    def _tokens(self, sequence: Sequence, count: int) -> PrefixTokens | None:
        """Return the first tokens of a sequence; None if others may not have what it computes."""
        has_keys = not sequence.variant or sequence.variant.key_offset != 0
        if not has_keys or sequence.cell_table.is_private:
            return None
        return self.copies.tokens(sequence.keys[:count].copy(), sequence.variant)

    def _present(self, load: _BlockLoad) -> Present | None:
        """Return which cells of a sequence's beginning are stored, (groups, n)."""
        groups = self.copies.manager.groups
        if all(isinstance(group, AttentionGroup) for group in groups):
            return np.ones((len(groups), load.blocks[-1].used), np.bool_)
        masks: list[Present] = []
        for block in load.blocks:
            description = self.blocks.describe(block)
            if description is None or len(description.present) != len(groups):
                break
            masks.append(description.mask()[:, : block.used - block.start])
        return np.concatenate(masks, axis=1) if masks else None

    def _fill(self, load: _BlockLoad, adoption: Adoption, block: StoredBlock) -> int | None:
        """Fill the cells of one block; if it cannot be read, return its first missing token."""
        table = adoption.table
        span = (max(block.start, adoption.start), min(block.used, load.end))
        read = self.blocks.read(
            load.tokens, block, partial(self.copies.memory, table, block.start, span)
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
