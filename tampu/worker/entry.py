"""The entry point of a worker process: `python -m tampu.worker.entry --socket FD`."""

from __future__ import annotations

import gc


def main() -> None:
    """Import what a model needs, and serve one."""
    gc.disable()  # imports make no garbage, and looking for it takes a twelfth of their time
    from tampu.worker.main import main

    gc.freeze()
    gc.enable()
    main()


if __name__ == "__main__":
    main()
