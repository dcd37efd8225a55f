"""Runs `tampu run`. It imports modules only when they are needed, to start quickly."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tampu.cli.logs import log_to_file
from tampu.cli.repl.printing import View, answer, files_of
from tampu.cli.repl.select_backend import select_backend
from tampu.cli.repl.session import Session, SessionOptions, check
from tampu.cli.standard_input import read_prompt
from tampu.errors import RequestError
from tampu.settings.settings import Settings
from tampu.text import valid_text

if TYPE_CHECKING:
    from tampu.runner.steering_options import Steering


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of `tampu run`.

    Attributes:
        session: how the conversation starts.
        view: how answers are shown.
        dimensions: of an embedding; None: all.
        trace: the file of a trace.
        engine: its name; None: the model's own, else the setting.
        draft: the name or the file of a draft model; None: the model's own, else the setting.
        steering: changes of values inside the model, of all requests.
        insecure: whether the model may be pulled without TLS.
    """

    session: SessionOptions = field(default_factory=SessionOptions)
    view: View = field(default_factory=View)
    dimensions: int | None = None
    trace: Path | None = None
    engine: str | None = None
    draft: str | None = None
    steering: tuple[Steering, ...] = ()
    insecure: bool = False


def run_model(model: str, words: Sequence[str], options: RunOptions | None = None) -> None:
    """Print an answer or an embedding, or start a conversation without a question.

    Args:
        model: a name or a path.
        words: the question, after what is piped in.
        options: None: the defaults.

    Raises:
        TampuError: if the model cannot answer.
    """
    options = options or RunOptions()
    settings = Settings.from_environment()
    backend, found = select_backend(
        model,
        settings,
        trace=options.trace,
        engine=options.engine,
        draft=options.draft,
        steering=options.steering,
        insecure=options.insecure,
    )
    if not gc.isenabled():  # the program's entry has put it off until all is imported
        gc.freeze()  # what has been imported stays
        gc.enable()
    with closing(backend):
        question = read_question(words)
        session = Session(backend, found, options.session)
        for line in check(session.parameters, session.format):
            print(f"warning: format: {line}", file=sys.stderr)
        if found.info.capabilities[:1] == ("embedding",):
            print_embedding(session, question, options.dimensions)
        else:
            if options.dimensions is not None:
                reason = f"{session.model.name} is not an embedding model"
                print(f"warning: --dimensions has no effect: {reason}", file=sys.stderr)
            converse(session, options.view, question, settings)


def converse(session: Session, view: View, question: str | None, settings: Settings) -> None:
    """Answer one question, or hold a conversation.

    Raises:
        TampuError: if the model cannot answer.
    """
    if session.think and not session.can_reason:
        print(f"{session.model.name} cannot reason; it answers without reasoning", file=sys.stderr)
    if question is not None:
        answer(session, view, question)
        return
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

    Paths of images and sounds in it are files that belong to it, as in a conversation.

    Raises:
        RequestError: without a text, for a file that is damaged, or for too many dimensions.
    """
    import json

    from tampu.ml.vectors import unit_vectors

    if text is None:
        raise RequestError(
            "this is an embedding model: give a text as an argument or on standard input"
        )
    vector = session.embed(*files_of(session, text))
    if dimensions is not None:
        if dimensions > len(vector):
            raise RequestError(f"--dimensions is {dimensions}, the embedding has {len(vector)}")
        vector = unit_vectors(vector[:dimensions])
    print(json.dumps([round(float(value), 8) for value in vector]))


def read_question(words: Sequence[str]) -> str | None:
    """Return standard input, if it is not a terminal, and the arguments; None: a conversation.

    Bytes that are not UTF-8 become U+FFFD, as in Ollama.

    Raises:
        RequestError: if there is neither a prompt nor a terminal.
    """
    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    piped = "" if is_terminal or sys.stdin is None else read_prompt()
    parts = [part for part in (piped, valid_text(" ".join(words))) if part.strip()]
    if parts:
        return " ".join(parts)
    if not (is_terminal and sys.stdout.isatty()):
        raise RequestError("no prompt: give one as an argument or on standard input")
    return None
