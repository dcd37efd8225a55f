"""The entry point of the `tampu` command. It runs quick commands with few imports."""

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

        sys.exit(outcome(lambda: _print_list("".join(arguments[1:]))))
    from tampu.cli.app import run

    sys.exit(run(arguments))


def _print_list(prefix: str) -> int:
    from tampu.cli.listing import print_list
    from tampu.settings.settings import Settings

    return print_list(prefix, Settings.from_environment(), as_json=False)


def _is_plain_list(arguments: list[str]) -> bool:
    """Whether this is `list` or `ls` without options; importing the parser of options is slow."""
    is_list = arguments[:1] in (["list"], ["ls"])
    return is_list and len(arguments) <= 2 and not any(a.startswith("-") for a in arguments)


if __name__ == "__main__":
    main()
