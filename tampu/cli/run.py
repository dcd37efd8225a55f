"""`tampu run`: an answer on standard output, or a conversation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tampu.errors import RequestError

if TYPE_CHECKING:
    from tampu.cli.session import Session
    from tampu.engine import Engine
    from tampu.settings import Settings

DEFAULT_CONTEXT = 4096

# Control characters, but for the tab and the end of a line: a terminal would obey them.
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


def run_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A GGUF file, or a model's name.")],
    prompt: Annotated[
        list[str] | None, typer.Argument(metavar="[PROMPT]", help="None: a conversation.")
    ] = None,
    system: Annotated[str, typer.Option(help="The system message.")] = "",
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="NAME=VALUE", help="Such as temperature=0.5."),
    ] = None,
    num_predict: Annotated[int | None, typer.Option(help="The most tokens to generate.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None,
    context: Annotated[
        int | None, typer.Option(min=4, help="Context length in tokens; else 4096.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, max=512, help="CPU threads; else one for each core.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print durations.")] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write what the engine does to a file, for Perfetto.")
    ] = None,
) -> None:
    """Ask a model something, or have a conversation with it."""
    from tampu.chat.prompt import PromptBuilder
    from tampu.cli.parameters import read_assignments
    from tampu.cli.session import Session

    parameters = read_assignments(option or [])
    given = {"num_predict": num_predict, "seed": seed}
    parameters |= {name: value for name, value in given.items() if value is not None}
    find(model)
    question = read_question(prompt or [])
    with loaded(model, context, threads) as engine, engine.trace(trace) if trace else nullcontext():
        prompts = PromptBuilder.for_model(engine.template, engine.tokenizer, engine.info.metadata)
        own = engine.prepared
        session = Session(
            engine, prompts, system or own.system, {**own.parameters, **parameters}, own.messages
        )
        session.check()
        if question is None:
            from tampu.cli.conversation import converse

            converse(session, engine.load_ns, is_verbose=verbose)
            return
        answer(session, question)
        if verbose:
            print_timing(session, engine.load_ns)


def read_question(words: list[str]) -> str | None:
    """Return the prompt from the arguments, after what is piped in; None: a conversation.

    Raises:
        RequestError: when there is neither a prompt nor a terminal.
    """
    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    try:
        piped = "" if is_terminal or sys.stdin is None else sys.stdin.read()
    except UnicodeDecodeError as error:
        raise RequestError("what is piped in is no text in UTF-8") from error
    parts = [part for part in (piped, " ".join(words)) if part.strip()]
    if parts:
        return " ".join(parts)
    if not (is_terminal and sys.stdout.isatty()):
        raise RequestError("there is no prompt: give one as an argument or on standard input")
    return None


def answer(session: Session, question: str) -> None:
    """Print the answer to a message as it comes."""
    is_terminal = sys.stdout.isatty()
    with closing(session.answer(question)) as pieces:
        for piece in pieces:
            sys.stdout.write(piece.translate(_CONTROLS) if is_terminal else piece)
            sys.stdout.flush()
    print(flush=True)


def print_timing(session: Session, load_ns: int) -> None:
    """Print what the last answer cost, to standard error."""
    from tampu.cli.session import timing_lines

    if session.usage is not None:
        print(f"\n{timing_lines(session.usage, load_ns)}", file=sys.stderr)


def find(model: str) -> tuple[Settings, Path]:
    """Return the settings, and the file of a model.

    Raises:
        ModelNotFoundError: saying which models there are.
    """
    from tampu.catalog import resolve
    from tampu.settings import Settings

    settings = Settings.from_environment()
    return settings, resolve(model)


@contextmanager
def loaded(model: str, context: int | None, threads: int | None) -> Iterator[Engine]:
    """Load a model, with a spinner if someone watches.

    Raises:
        TampuError: when it cannot be loaded.
    """
    from tampu.catalog import prepare
    from tampu.modelinfo import read_model_info

    settings, path = find(model)
    longest = read_model_info(path).context
    stated = prepare(model).parameters.get("num_ctx")
    wanted = context or (stated if isinstance(stated, int) else None)
    wanted = wanted or settings.context or DEFAULT_CONTEXT
    if longest and context and context > longest:
        print(f"the model was trained for a context of {longest}, it gets that", file=sys.stderr)
    with waiting(f"loading {path.stem}") as progress:
        from tampu.engine import Engine

        engine = Engine.load(
            model,
            context=min(wanted, longest or wanted),
            threads=threads or settings.threads,
            cache_type=settings.cache_type,
            flash_attention=settings.flash_attention,
            kernels=settings.kernels,
            progress=progress,
        )
    with engine:
        yield engine


@contextmanager
def waiting(text: str) -> Iterator[Callable[[float], None]]:
    """Show a spinner on standard error if it is a terminal; yields what tells it how far it is."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield lambda fraction: status.update(f"{text} {fraction:.0%}")
