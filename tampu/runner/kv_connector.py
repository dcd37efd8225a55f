"""Where keys, values and states of tokens outlive their cells: the interface of such a store.

The loop and the scheduler call it; they know no file and no thread of it:

    a caller's thread   lookup      is the beginning of a new prompt stored?
    the loop's thread   load        fill cells with it, before the sequence waits for a slot
                        released    a sequence has ended: its cells may be stored
                        step_done   what was computing then is done: they may be read
                        close
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tampu.runner.sequence import Sequence


@dataclass(slots=True, eq=False)
class KVLoad:
    """A sequence whose beginning is loaded before it waits for a slot."""

    sequence: Sequence


class KVConnector:
    """A store of keys, values and states; this one stores nothing.

    A failure of a store must not end a request: the tokens are computed instead.
    """

    def lookup(self, sequence: Sequence) -> KVLoad | None:  # noqa: ARG002
        """Return what can be loaded for a new sequence; None: it is not worth it. Any thread may.

        The last token of a prompt is computed in any case: its logits are needed.
        """
        return None

    def load(self, load: KVLoad, done: Callable[[KVLoad], None]) -> bool:  # noqa: ARG002
        """Begin to load, or end it; return whether the sequence has to wait for `done`.

        Args:
            load: by `lookup`.
            done: is called once from another thread, if this returns True; then the load must be
                passed to this method again.
        """
        return False

    def pending(self) -> list[Sequence]:
        """Return the sequences that wait for `done`."""
        return []

    def released(self, sequence: Sequence) -> None:
        """Note the cells of a sequence that has ended; a step may still be computing some."""

    def step_done(self) -> None:
        """Begin to store what was noted: the step that was computing then is done.

        A step that is queued writes other cells, or cells with new generations.
        """

    def close(self) -> None:
        """Wait until all is stored; nothing may be computing."""
