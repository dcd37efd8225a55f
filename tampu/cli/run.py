"""`tampu run`: an answer on standard output, or a conversation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tampu.cli.completion import complete_model
from tampu.cli.pull_push import Insecure
from tampu.errors import RequestError

if TYPE_CHECKING:
    from tampu.cli.repl.printing import View
    from tampu.cli.repl.session import Session
    from tampu.settings.settings import Settings


def run_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Path of a GGUF file, or a model's name.",
            autocompletion=complete_model,
        ),
    ],
    prompt: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROMPT]", help="Prompt to answer (default: start a conversation)."
        ),
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
        int | None, typer.Option(help="Seed of sampling; the same seed gives the same answer.")
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="Format of the answer: json, a JSON schema, or its file.")
    ] = None,
    think: Annotated[
        str | None,
        typer.Option(
            metavar="[=LEVEL]", help="Reason first: true, false, low, medium, high or max."
        ),
    ] = None,
    hide_thinking: Annotated[
        bool, typer.Option("--hidethinking", help="Reason, but do not show the reasoning.")
    ] = False,
    context: Annotated[
        int | None, typer.Option(min=4, help="Context length in tokens (default: 4096).")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=512, help="Number of CPU threads (default: one per core)."),
    ] = None,
    keep_alive: Annotated[
        str | None,
        typer.Option(
            "--keepalive",
            metavar="TIME",
            help="Unload the model after it was idle for so long, such as 5m.",
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
    engine: Annotated[str | None, typer.Option(help="Engine: auto, native or llamacpp.")] = None,
    dimensions: Annotated[
        int | None, typer.Option(min=1, help="Number of dimensions of an embedding (default: all).")
    ] = None,
    truncate: Annotated[
        str | None,
        typer.Option(
            metavar="[=BOOL]", help="Truncate a text that is too long to embed: true or false."
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace of the engine to a file, for Perfetto.")
    ] = None,
    insecure: Insecure = False,
) -> None:
    """Ask a model something, or have a conversation with it; one that is missing is pulled."""
    from tampu.cli.parameters import (
        read_assignments,
        read_format,
        read_keep_alive,
        read_think,
        read_truncate,
    )
    from tampu.cli.repl.printing import View
    from tampu.cli.repl.select_backend import select_backend
    from tampu.cli.repl.session import Session
    from tampu.settings.settings import Settings

    given = {
        "num_predict": num_predict, "seed": seed, "num_ctx": context, "num_thread": threads,
    }  # fmt: skip
    parameters = read_assignments(option or [])
    parameters |= {name: value for name, value in given.items() if value is not None}
    form = read_format(format) if format else None
    thought = read_think(think)
    keep_s = read_keep_alive(keep_alive)
    cuts = read_truncate(truncate)
    view = View(
        is_verbose=verbose,
        is_wrapped=not no_word_wrap,
        is_markdown=not no_markdown,
        hides_thoughts=hide_thinking,
    )
    settings = Settings.from_environment()
    backend = select_backend(model, keep_s, settings, trace=trace, engine=engine, insecure=insecure)
    try:
        question = read_question(prompt or [])
        session = Session(backend, system, parameters, thought, form)
        session.check()
        if backend.model.info.capabilities[:1] == ("embedding",):
            print_embedding(session, question, dimensions, truncate=cuts)
        else:
            converse(session, view, question, settings)
    finally:
        backend.close()


def converse(session: Session, view: View, question: str | None, settings: Settings) -> None:
    """Answer one question, or those that are typed.

    Raises:
        TampuError: when there is no answer.
    """
    if session.think is not None and session.think is not False:
        from tampu.cli.repl.set_command import warn_of_thoughts

        warn_of_thoughts(session)
    if question is not None:
        from tampu.cli.repl.printing import answer

        answer(session, view, question)
        return
    from tampu.cli.repl.conversation import Conversation
    from tampu.cli.repl.reader import TerminalReader, echo_off

    is_kept = not settings.no_history
    reader = TerminalReader(settings.cache / "history", is_kept=is_kept, editor=settings.editor)
    with echo_off():
        session.load()
        Conversation(session, reader, view).run()


def print_embedding(
    session: Session, text: str | None, dimensions: int | None, *, truncate: bool = True
) -> None:
    """Print the embedding of a text as a JSON array.

    Args:
        session: with the model.
        text: to embed.
        dimensions: how many of the first numbers; None: all.
        truncate: whether a text that is too long is cut, else refused.

    Raises:
        RequestError: without a text, or for more dimensions than it has.
    """
    import json

    from tampu.ml.vectors import normalize

    if text is None:
        raise RequestError("this model makes embeddings: give a text as an argument or piped in")
    vector = session.backend.embed(text, session.parameters, truncate=truncate)
    if dimensions is not None:
        if dimensions > len(vector):
            raise RequestError(f"--dimensions is {dimensions}, the embedding has {len(vector)}")
        vector = normalize(vector[:dimensions])
    print(json.dumps([round(float(value), 8) for value in vector]))


def read_question(words: list[str]) -> str | None:
    """Return the prompt from the arguments, after what is piped in; None: a conversation.

    Raises:
        RequestError: when there is neither a prompt nor a terminal.
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
        raise RequestError("there is no prompt: give one as an argument or on standard input")
    return None
