"""`tampu run`: prints one answer, or holds a conversation."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tampu.cli.arguments import Engine, Insecure, ModelOrFile, Threads
from tampu.errors import RequestError
from tampu.settings.settings import Settings

if TYPE_CHECKING:
    from tampu.cli.repl.printing import View
    from tampu.cli.repl.session import Session


def run_command(
    model: ModelOrFile,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT", help="Prompt to answer (default: start a conversation)."),
    ] = None,
    system: Annotated[str, typer.Option(help="System message.")] = "",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", metavar="NAME=VALUE", help="Set a parameter, such as temperature=0.5."
        ),
    ] = None,
    num_predict: Annotated[
        int | None, typer.Option(help="Maximum number of tokens to generate.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Random seed; the same seed gives the same answer.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(help="Format of the answer: json, a JSON schema, or a file with one."),
    ] = None,
    think: Annotated[
        str | None,
        typer.Option(
            metavar="[=LEVEL]",
            help="Reason before answering: true (default), false, low, medium, high or max.",
        ),
    ] = None,
    hide_thinking: Annotated[
        bool, typer.Option("--hidethinking", help="Hide the reasoning.")
    ] = False,
    context: Annotated[
        int | None, typer.Option(min=4, help="Context length in tokens (default: 4096).")
    ] = None,
    threads: Threads = None,
    keep_alive: Annotated[
        str | None,
        typer.Option(
            "--keepalive",
            metavar="TIME",
            help="Time after which an idle model is unloaded, such as 5m.",
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print token counts and durations.")
    ] = False,
    no_word_wrap: Annotated[
        bool, typer.Option("--nowordwrap", help="Print text without wrapping words.")
    ] = False,
    no_markdown: Annotated[
        bool, typer.Option("--nomarkdown", help="Print Markdown source without rendering it.")
    ] = False,
    engine: Engine = None,
    dimensions: Annotated[
        int | None, typer.Option(min=1, help="Number of dimensions of an embedding (default: all).")
    ] = None,
    truncate: Annotated[
        str | None,
        typer.Option(
            metavar="[=BOOL]",
            help="Truncate a prompt that is too long: true (default) or false.",
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace of the engine to a file, for Perfetto.")
    ] = None,
    insecure: Insecure = False,
) -> None:
    """Ask a model a question, or chat with it.

    A model that is not on this machine is pulled first.
    """
    from tampu.cli import parameters
    from tampu.cli.repl.printing import View
    from tampu.cli.repl.select_backend import select_backend
    from tampu.cli.repl.session import Session

    given = {
        "num_predict": num_predict, "seed": seed, "num_ctx": context, "num_thread": threads,
    }  # fmt: skip
    options = parameters.read_assignments(option or [])
    options |= {name: value for name, value in given.items() if value is not None}
    form = parameters.read_format(format) if format else None
    reasoning = parameters.read_think(think)
    keep_s = parameters.read_keep_alive(keep_alive)
    cuts = parameters.read_truncate(truncate)
    view = View(verbose, not no_word_wrap, not no_markdown, hide_thinking)
    settings = Settings.from_environment()
    backend, found = select_backend(model, settings, trace=trace, engine=engine, insecure=insecure)
    with closing(backend):
        question = read_question(prompt or [])
        session = Session(backend, found, system, options, reasoning, form, keep_s, truncate=cuts)
        session.check()
        if found.info.capabilities[:1] == ("embedding",):
            print_embedding(session, question, dimensions)
        else:
            converse(session, view, question, settings)


def converse(session: Session, view: View, question: str | None, settings: Settings) -> None:
    """Answer one question, or hold a conversation.

    Raises:
        TampuError: if there is no answer.
    """
    if session.think and not session.can_reason:
        print(f"{session.model.name} cannot reason; it answers without reasoning", file=sys.stderr)
    if question is not None:
        from tampu.cli.repl.printing import answer

        answer(session, view, question)
        return
    from tampu.cli.logs import log_to_file
    from tampu.cli.repl.conversation import Conversation
    from tampu.cli.repl.reader import TerminalReader, echo_off

    if sys.stderr.isatty():  # log lines would be among the answers
        log_to_file(settings.cache / "run.log")
    is_kept = not settings.no_history
    reader = TerminalReader(settings.cache / "history", is_kept=is_kept, editor=settings.editor)
    with echo_off():
        session.load()
        Conversation(session, reader, view).run()


def print_embedding(session: Session, text: str | None, dimensions: int | None) -> None:
    """Print the embedding of a text, or its first dimensions, as a JSON array.

    Raises:
        RequestError: without a text, or for too many dimensions.
    """
    import json

    from tampu.ml.vectors import normalize

    if text is None:
        raise RequestError(
            "this is an embedding model: give a text as an argument or on standard input"
        )
    vector = session.embed(text)
    if dimensions is not None:
        if dimensions > len(vector):
            raise RequestError(f"--dimensions is {dimensions}, the embedding has {len(vector)}")
        vector = normalize(vector[:dimensions])
    print(json.dumps([round(float(value), 8) for value in vector]))


def read_question(words: list[str]) -> str | None:
    """Return standard input, if it is not a terminal, and the arguments; None: a conversation.

    Raises:
        RequestError: if there is neither a prompt nor a terminal.
    """
    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    try:
        piped = "" if is_terminal or sys.stdin is None else sys.stdin.read()
    except UnicodeDecodeError as error:
        raise RequestError("standard input is not valid UTF-8") from error
    parts = [part for part in (piped, " ".join(words)) if part.strip()]
    if parts:
        return " ".join(parts)
    if not (is_terminal and sys.stdout.isatty()):
        raise RequestError("no prompt: give one as an argument or on standard input")
    return None
