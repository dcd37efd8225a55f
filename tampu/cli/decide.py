"""`tampu decide`: answers questions about inputs with probabilities."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from tampu.cli.arguments import ModelOrFile
from tampu.cli.standard_input import input_lines
from tampu.engine.questions import check_count
from tampu.errors import RequestError, TampuError
from tampu.settings.settings import Settings
from tampu.text import read_text, valid_text

_SLOTS = 4  # without a server
_FIELDS = ("input", "questions")


def decide_command(
    model: ModelOrFile,
    questions: Annotated[
        Path | None,
        typer.Option("--questions", "-q", help="File with the questions, a JSON list."),
    ] = None,
    input: Annotated[
        Path,
        typer.Option("--input", "-i", help="JSONL file of inputs; - reads standard input."),
    ] = Path("-"),
) -> None:
    """Answer questions about inputs, with the probability of each answer.

    A line of the input is a JSON string, or an object with "input" and maybe its own "questions";
    its other fields are passed on. Questions have the form of POST /v1/decisions. One line of JSON
    is printed for each, with "answers" and "usage", or with "error"; an empty line is an error. The
    exit code is 1 if there is one.
    """
    from tampu.cli.repl.select_backend import select_backend

    asked = _questions(questions) if questions else None
    backend, found = select_backend(model, Settings.from_environment(), slots=_SLOTS)
    failed = False
    with closing(backend):
        for where, text in _lines(input):
            kept: dict[str, Any] = {}
            try:
                row = _row(text, where, asked)
                kept = {name: value for name, value in row.items() if name not in _FIELDS}
                body = {"model": found.name, **_asked(row, where)}
                answer = backend.ask("POST", "/v1/decisions", body, timeout_s=None)
                line = {name: answer[name] for name in ("answers", "usage")}
            except TampuError as error:
                told = str(error)
                told = told if told.startswith(where) else f"{where}: {told}"
                line, failed = {"error": told}, True
            print(valid_text(json.dumps({**kept, **line}, ensure_ascii=False)), flush=True)
    if failed:
        raise typer.Exit(1)


def _lines(path: Path) -> Iterator[tuple[str, str | RequestError]]:
    """Yield the lines of a file, as `input_lines`; not empty ones at its end."""
    empty: list[tuple[str, str | RequestError]] = []
    for where, line in input_lines(path):
        empty.append((where, line))
        if isinstance(line, RequestError) or line.strip():
            yield from empty
            empty.clear()


def _row(line: str | RequestError, where: str, questions: object) -> dict[str, Any]:
    """Return all fields of a line.

    Raises:
        RequestError: if it is empty or not JSON.
    """
    if isinstance(line, RequestError):
        raise line
    if not line.strip():
        raise RequestError(f"{where} is empty")
    value = _parsed(line, where)
    return {"questions": questions, **(value if isinstance(value, dict) else {"input": value})}


def _asked(row: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of a request.

    Raises:
        RequestError: if one is missing.
    """
    for field in _FIELDS:
        if row.get(field) is None:
            raise RequestError(f"{where}: {field} is missing")
    return {field: row[field] for field in _FIELDS}


def _questions(path: Path) -> object:
    found = _parsed(read_text(path), str(path))
    if not isinstance(found, list):
        raise RequestError(f"{path} must have a JSON list of questions")
    try:
        check_count(len(found))
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from None
    return found


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{where}: invalid JSON: {error}") from None
