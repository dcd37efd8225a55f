"""The commands, and what every one of them does with an error: one line, exit code 2."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from tampu.cli.bench import bench_command
from tampu.cli.convert import convert_command
from tampu.cli.quantize import quantize_command
from tampu.cli.run import run_command
from tampu.cli.serve import serve_command
from tampu.cli.show import show_command
from tampu.errors import TampuError
from tampu.version import __version__

DEBUG = "--debug"

app = typer.Typer(
    name="tampu",
    help="Run and serve local language models.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run_command)
app.command("serve")(serve_command)
app.command("show")(show_command)
app.command("bench")(bench_command)
app.command("convert")(convert_command)
app.command("quantize")(quantize_command)

# Typer has its own copy of click, or uses click, depending on its version; this is either's.
_COMMAND_LINE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]


@app.callback(invoke_without_command=True)
def options(
    command: typer.Context,
    version: Annotated[bool, typer.Option("--version", "-v", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option(DEBUG, help="Log more, and show tracebacks.")] = False,
) -> None:
    """Run and serve local language models."""
    if version:
        print(f"tampu version {__version__}")
        raise typer.Exit
    if command.invoked_subcommand is None:
        print(command.get_help())
        raise typer.Exit
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )


def run(arguments: Sequence[str]) -> int:
    """Run a command and return the exit code."""
    arguments = _with_debug_first(arguments)
    try:
        code = app(list(arguments), prog_name="tampu", standalone_mode=False)
    except TampuError as error:
        if DEBUG in arguments:
            raise
        return _fail(str(error))
    except _COMMAND_LINE_ERROR as error:
        return _fail(_one_line(error))
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone; Python must not complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code if isinstance(code, int) else 0


def _fail(message: str) -> int:
    print(f"Error: {message}", file=sys.stderr)
    return 2


def _one_line(error: Exception) -> str:
    """Return what click says of a bad command line."""
    message = error.format_message() if isinstance(error, typer.BadParameter) else str(error)
    return " ".join(message.split()) or type(error).__name__


def _with_debug_first(arguments: Sequence[str]) -> list[str]:
    """Let `--debug` stand anywhere before a `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    rest = [argument for argument in arguments[:end] if argument != DEBUG]
    found = [DEBUG] if len(rest) < end else []
    return [*found, *rest, *arguments[end:]]
