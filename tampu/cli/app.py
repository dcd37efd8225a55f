"""All commands. An error of any of them is one line on standard error and exit code 2."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Protocol, runtime_checkable

import typer

from tampu.cli.batch import batch_app
from tampu.cli.bench import bench_command
from tampu.cli.cache import cache_command
from tampu.cli.compare import compare_command
from tampu.cli.config import config_command
from tampu.cli.convert import convert_command, quantize_command
from tampu.cli.create import create_command
from tampu.cli.decide import decide_command
from tampu.cli.devices import devices_command
from tampu.cli.doctor import doctor_command
from tampu.cli.exit_codes import INTERRUPTED, fail, outcome
from tampu.cli.launch import launch_command
from tampu.cli.logs import log_to_stderr
from tampu.cli.models import (
    copy_command,
    export_command,
    import_command,
    list_command,
    remove_command,
)
from tampu.cli.ps import processes_command, stop_command
from tampu.cli.pull_push import pull_command, push_command
from tampu.cli.ray import ray_app
from tampu.cli.run import run_command
from tampu.cli.serve import serve_command
from tampu.cli.show import show_command
from tampu.cli.steer import steer_app
from tampu.cli.transcribe import transcribe_command
from tampu.cli.ui import ui_command
from tampu.cli.verify import verify_command
from tampu.cli.verify_store import verify_store_command
from tampu.settings.parsers import near_name
from tampu.version import __version__

DEBUG = "--debug"
OPTIONAL = ("--think", "--truncate")  # without a value they mean true

app = typer.Typer(
    name="tampu",
    help="Run and serve local language models.",
    rich_markup_mode=None,  # its tables print `--verbose <bool>` for a flag without a value
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("run")(run_command)
app.command("decide")(decide_command)
app.command("transcribe")(transcribe_command)
app.add_typer(batch_app, name="batch")
app.command("serve")(serve_command)
app.add_typer(ray_app, name="ray")
app.command("start", hidden=True)(serve_command)
app.command("ui")(ui_command)
app.command("launch")(launch_command)
app.command("show")(show_command)
app.command("pull")(pull_command)
app.command("push")(push_command)
app.command("list")(list_command)
app.command("ls", hidden=True)(list_command)
app.command("ps")(processes_command)
app.command("stop")(stop_command)
app.command("cp")(copy_command)
app.command("rm")(remove_command)
app.command("verify-store")(verify_store_command)
app.command("cache")(cache_command)
app.command("export")(export_command)
app.command("import")(import_command)
app.command("config")(config_command)
app.command("devices")(devices_command)
app.command("doctor")(doctor_command)
app.command("bench")(bench_command)
app.command("compare")(compare_command)
app.command("verify")(verify_command)
app.add_typer(steer_app, name="steer")
app.command("create")(create_command)
app.command("convert")(convert_command)
app.command("quantize")(quantize_command)

_UNKNOWN_COMMAND = re.compile(r"No such command '.*'\.", re.DOTALL)  # without a suggestion

# Typer has its own copy of click, or uses click, depending on its version; this is either's.
_COMMAND_LINE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]


@app.command("help")
def help_command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="COMMAND", help="Command to explain (default: list all commands)."),
    ] = None,
) -> None:
    """Explain a command."""
    raise typer.Exit(_run([name, "--help"] if name else ["--help"]))


@app.callback(invoke_without_command=True)
def options(
    command: typer.Context,
    version: Annotated[bool, typer.Option("--version", "-v", help="Print the version.")] = False,
    debug: Annotated[
        bool, typer.Option(DEBUG, help="Log more, and show tracebacks of errors.")
    ] = False,
) -> None:
    """Run and serve local language models."""
    if version:
        print(f"tampu version {__version__}")
        raise typer.Exit
    if command.invoked_subcommand is None:
        print(command.get_help())
        raise typer.Exit
    log_to_stderr(is_debug=debug)


def run(arguments: Sequence[str]) -> int:
    """Run a command and return the exit code."""
    arguments = _with_debug_first(_with_value(arguments))
    return outcome(lambda: _run(arguments), is_debug=DEBUG in arguments)


def _run(arguments: Sequence[str]) -> int:
    try:
        code = app(list(arguments), prog_name="tampu", standalone_mode=False)
    except _COMMAND_LINE_ERROR as error:
        return fail(_one_line(error))
    except typer.Abort:
        return INTERRUPTED
    return code if isinstance(code, int) else 0


@runtime_checkable
class _UnknownOption(Protocol):
    """The error for an unknown option: its class is in a private package of typer's."""

    ctx: typer.Context | None
    option_name: str


def _one_line(error: Exception) -> str:
    """Return click's message about a bad command line as one line."""
    message = error.format_message() if isinstance(error, typer.BadParameter) else str(error)
    message = message.replace("Input should be", "it must be").partition(", unable to parse")[0]
    hint = " `tampu help` lists them." if _UNKNOWN_COMMAND.fullmatch(message) else ""
    return " ".join(message.split()) + hint + _near_option(error) or type(error).__name__


def _near_option(error: Exception) -> str:
    """Return a hint at the option that an unknown one resembles; empty if there is none."""
    if not isinstance(error, _UnknownOption) or error.ctx is None:
        return ""
    options = [each for option in error.ctx.command.params for each in option.opts]
    near = near_name(error.option_name, options)
    return f" (did you mean {near}?)" if near else ""


def _with_value(arguments: Sequence[str]) -> list[str]:
    """Add the value to options that are given without one; click would take the next word."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    before = [f"{word}=true" if word in OPTIONAL else word for word in arguments[:end]]
    return [*before, *arguments[end:]]


def _with_debug_first(arguments: Sequence[str]) -> list[str]:
    """Move `--debug` to the front from anywhere before a `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    rest = [argument for argument in arguments[:end] if argument != DEBUG]
    found = [DEBUG] if len(rest) < end else []
    return [*found, *rest, *arguments[end:]]
