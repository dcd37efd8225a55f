"""The entry point of the `tampu` command: what needs few imports is answered before the others."""

from __future__ import annotations

import sys

from tampu.version import __version__


def main() -> None:
    """Run the command with this process's arguments, and exit."""
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-v"]):
        print(f"tampu version {__version__}")
        return
    if _is_plain_list(arguments):
        from tampu.cli.exit_codes import outcome
        from tampu.cli.listing import print_list

        sys.exit(outcome(lambda: print_list("".join(arguments[1:]), as_json=False)))
    from tampu.cli.app import run

    sys.exit(run(arguments))


def _is_plain_list(arguments: list[str]) -> bool:
    """Whether this is `list` or `ls`, with a prefix at most: parsing options takes its time."""
    is_list = arguments[:1] in (["list"], ["ls"])
    return is_list and len(arguments) <= 2 and not any(a.startswith("-") for a in arguments)


if __name__ == "__main__":
    main()
