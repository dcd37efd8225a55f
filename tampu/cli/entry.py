"""The entry point of the `tampu` command. It runs quick commands with few imports."""

from __future__ import annotations

import gc
import sys
from io import TextIOWrapper

from tampu.version import __version__


def main() -> None:
    """Run the command with this process's arguments, and exit."""
    arguments = sys.argv[1:]
    if isinstance(sys.stdout, TextIOWrapper):  # names of files keep their bytes, UTF-8 or not
        sys.stdout.reconfigure(errors="surrogateescape")
    if arguments in (["--version"], ["-v"]):
        print(f"tampu version {__version__}")
        return
    if _is_listing(arguments):
        from tampu.cli.exit_codes import outcome

        sys.exit(outcome(lambda: _print_models(arguments[0], "".join(arguments[1:]))))
    if arguments[:1] == ["run"] and len(arguments) > 1 and not _has_options(arguments):
        from tampu.cli.exit_codes import outcome

        sys.exit(outcome(lambda: _run_model(arguments[1], arguments[2:])))
    if arguments[:1] == ["serve"]:
        gc.disable()  # imports make no garbage, and looking for it takes a tenth of their time
    from tampu.cli.app import run

    sys.exit(run(arguments))


def _run_model(model: str, words: list[str]) -> int:
    gc.disable()  # as for `serve`
    from tampu.cli.logs import log_to_stderr
    from tampu.cli.run_model import run_model

    log_to_stderr(is_debug=False)
    run_model(model, words)
    return 0


def _print_models(command: str, prefix: str) -> int:
    from tampu.settings.settings import Settings

    settings = Settings.from_environment()
    if command == "ps":
        from tampu.cli.processes import print_processes

        return print_processes(prefix, settings, as_json=False)
    from tampu.cli.listing import print_list

    return print_list(prefix, settings, as_json=False)


def _is_listing(arguments: list[str]) -> bool:
    is_listing = arguments[:1] in (["list"], ["ls"], ["ps"])
    return is_listing and len(arguments) <= 2 and not _has_options(arguments)


def _has_options(arguments: list[str]) -> bool:
    """Whether there are options; importing their parser is slow."""
    return any(argument.startswith("-") for argument in arguments)


if __name__ == "__main__":
    main()
