"""`tampu batch`: files of requests, answered together."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from tampu.cli.form import form_body
from tampu.cli.server_client import ServerError
from tampu.errors import RequestError
from tampu.settings.settings import Settings
from tampu.text import decode_text, encoding_of

_POLL_S = 0.2
_ENDED = ("completed", "failed", "expired", "cancelled")

batch_app = typer.Typer(help="Run files of requests.", rich_markup_mode=None)


class BatchServer(Protocol):
    """A server with OpenAI's files and batches."""

    def send(
        self, method: str, path: str, body: bytes | None = None, content_type: str = ...
    ) -> bytes:
        """Return the body of its response.

        Raises:
            ServerError: if it refused.
        """
        ...

    def close(self) -> None:
        """End the connection, or the server if it is within this program."""
        ...


@batch_app.callback()
def batch_options() -> None:
    """Run files of requests."""


@batch_app.command("run")
def batch_run_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSONL file of requests.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File for the results (default: standard output)."),
    ] = None,
) -> None:
    """Answer the requests in a file, on a running server or else in this program.

    A line of the file is a request as for POST /v1/batches: {"custom_id": "1", "method": "POST",
    "url": "/v1/chat/completions", "body": {"model": ..., "messages": ...}}. The results are lines
    with "custom_id", "response" and "error", in the order of the file; the exit code is 1 if a
    request failed. A server runs it beside its other requests, which come first.
    """
    settings = Settings.from_environment()
    content = file.read_bytes()
    if encoding_of(content) == "utf-16":
        content = decode_text(content, str(file)).encode()
    server = _server(settings)
    with closing(server):
        failed = _run(server, file, content, output)
    if failed:
        raise typer.Exit(1)


def _server(settings: Settings) -> BatchServer:
    from tampu.cli.repl.select_backend import running_server

    found = running_server(settings)
    if found is not None:
        return found
    from tampu.cli.own_server import OwnServer  # imports the whole server

    return OwnServer(settings)


def _run(server: BatchServer, file: Path, content: bytes, output: Path | None) -> int:
    """Run a file and write its results; return how many requests failed."""
    uploaded = _upload(server, file.name, content)
    kept = [uploaded]
    try:
        batch = _post(
            server, "/v1/batches", {"input_file_id": uploaded, "endpoint": _endpoint(content)}
        )
        try:
            batch = _wait(server, batch)
        except BaseException:
            with suppress(ServerError):
                server.send("POST", f"/v1/batches/{batch['id']}/cancel")
            raise
        found = [batch["output_file_id"], batch["error_file_id"]]
        kept += [id for id in found if id]
        if batch["status"] == "failed":
            raise _error(file, batch["errors"]["data"])
        lines = [server.send("GET", f"/v1/files/{id}/content") for id in found if id]
        _write(b"".join(lines), content, output)
        return int(batch["request_counts"]["failed"])
    finally:
        for id in kept:
            with suppress(ServerError):
                server.send("DELETE", f"/v1/files/{id}")


def _upload(server: BatchServer, name: str, content: bytes) -> str:
    body, kind = form_body([("purpose", "batch")], name, content)
    answer = server.send("POST", "/v1/files", body, kind)
    return str(json.loads(answer)["id"])


def _post(server: BatchServer, path: str, body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(server.send("POST", path, json.dumps(body).encode()))
    return found


def _wait(server: BatchServer, batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch when it has ended; on a terminal its progress is shown."""
    while batch["status"] not in _ENDED:
        time.sleep(_POLL_S)
        batch = json.loads(server.send("GET", f"/v1/batches/{batch['id']}"))
        if sys.stderr.isatty():
            counts = batch["request_counts"]
            done = counts["completed"] + counts["failed"]
            print(f"\r{done} of {counts['total']} requests", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return batch


def _lines(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the lines that are objects; the server names the others."""
    for text in content.splitlines():
        with suppress(ValueError, RecursionError):
            line = json.loads(text)
            if isinstance(line, dict):
                yield line


def _endpoint(content: bytes) -> str:
    return str(next(_lines(content), {}).get("url", "/v1/chat/completions"))


def _error(file: Path, errors: list[dict[str, Any]]) -> RequestError:
    first = errors[0]
    where = f"{file}, line {first['line']}" if first["line"] else str(file)
    more = f" ({len(errors) - 1} more lines are wrong)" if len(errors) > 1 else ""
    return RequestError(f"{where}: {first['message']}{more}")


def _write(results: bytes, content: bytes, output: Path | None) -> None:
    """Write results in the order of the file."""
    by_id = {line["custom_id"]: line for line in _lines(results)}
    ordered = [by_id[line["custom_id"]] for line in _lines(content)]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in ordered)
    if output is None:
        print(text, end="", flush=True)
    else:
        output.write_text(text, encoding="utf-8")
