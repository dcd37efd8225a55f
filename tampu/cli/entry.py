"""The entry point of the `tampu` command: what needs no imports is answered before any."""

from __future__ import annotations

import sys

from tampu.version import __version__


def main() -> None:
    """Run the command with this process's arguments, and exit."""
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-v"]):
        print(f"tampu version {__version__}")
        return
    from tampu.cli.app import run

    sys.exit(run(arguments))


if __name__ == "__main__":
    main()
