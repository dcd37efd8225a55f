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
    if _is_quick(arguments):
        from tampu.cli.exit_codes import outcome

        sys.exit(outcome(lambda: _print_models(arguments[0], "".join(arguments[1:]))))
    from tampu.cli.app import run

    sys.exit(run(arguments))


def _print_models(command: str, prefix: str) -> int:
    from tampu.settings.settings import Settings

    settings = Settings.from_environment()
    if command == "ps":
        from tampu.cli.processes import print_processes

        return print_processes(prefix, settings, as_json=False)
    from tampu.cli.listing import print_list

    return print_list(prefix, settings, as_json=False)


def _is_quick(arguments: list[str]) -> bool:
    """Whether this is `list` or `ps` without options; importing the parser of options is slow."""
    is_listing = arguments[:1] in (["list"], ["ls"], ["ps"])
    return is_listing and len(arguments) <= 2 and not any(a.startswith("-") for a in arguments)


if __name__ == "__main__":
    main()
