"""A conversation without a model and without a terminal."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from tampu.cli.repl.backend import show
from tampu.cli.repl.session import Session, SessionOptions
from tampu.errors import ComputeError, ModelNotFoundError, RequestError, TampuError
from tampu.runner.events import Usage

USAGE = Usage(
    prompt_tokens=26, prompt_ns=130_000_000, generated_tokens=298, generated_ns=4_700_000_000,
    total_ns=4_900_000_000,
)  # fmt: skip
LAST = {
    "done": True,
    "prompt_eval_count": USAGE.prompt_tokens,
    "prompt_eval_duration": USAGE.prompt_ns,
    "eval_count": USAGE.generated_tokens,
    "eval_duration": USAGE.generated_ns,
    "total_duration": USAGE.total_ns,
}


class FakeServer:
    """Answers with a few words, or as the question says.

    Attributes:
        adds_prefix: as of a server.
        models: what `POST /api/show` returns, by name.
        asked: the bodies of requests for answers.
        loads: the names and options of the models that were loaded, in order.
        unloads: the names of those that were unloaded.
        created: the bodies of `POST /api/create`.
        refusals: errors for the next requests that load a model.
        closed: how many answers were closed.
    """

    status = ""

    def __init__(self, models: dict[str, dict[str, Any]], *, adds_prefix: bool = False) -> None:
        self.adds_prefix = adds_prefix
        self.models = models
        self.asked: list[dict[str, Any]] = []
        self.loads: list[tuple[str, dict[str, Any]]] = []
        self.unloads: list[str] = []
        self.created: list[dict[str, Any]] = []
        self.refusals: list[TampuError] = []
        self.closed = 0

    def ask(
        self, _: str, path: str, body: dict[str, Any] | None = None, timeout_s: float | None = None
    ) -> dict[str, Any]:
        del timeout_s
        body = body or {}
        match path:
            case "/api/show" if body["model"] in self.models:
                return self.models[body["model"]]
            case "/api/show":
                raise ModelNotFoundError(f"model {body['model']!r} not found")
            case "/api/tags":
                time = "2026-01-01T00:00:00Z"
                return {
                    "models": [
                        {"name": name, "digest": "0", "size": 1, "modified_at": time}
                        for name in self.models
                    ]
                }
            case "/api/embed":
                return {"embeddings": [[0.5, 0.5, 0.5, 0.5]]}
            case "/api/create":
                self.created.append(body)
            case "/api/generate" if body.get("keep_alive") == 0:
                self.unloads.append(body["model"])
            case "/api/generate":
                if self.refusals:
                    raise self.refusals.pop(0)
                self.loads.append((body["model"], body["options"]))
        return {}

    def stream(self, _: str, body: dict[str, Any]) -> Generator[dict[str, Any]]:
        question = body.get("prompt") or body["messages"][-1]["content"]
        self.asked.append(body)
        if question == "refuse":
            raise RequestError("cannot")
        return self._answer(question)

    def _answer(self, question: str) -> Generator[dict[str, Any]]:
        try:
            if question == "think":
                yield {"message": {"thinking": "I am "}}
                yield {"message": {"thinking": "not sure."}}
                yield {"message": {"content": "Well: "}}
            yield {"message": {"content": "I "}}
            if question == "fail":
                raise ComputeError("NaN")
            if question == "interrupt":
                raise KeyboardInterrupt
            yield {"message": {"content": "say\x1b[2J."}}
            yield LAST
        finally:
            self.closed += 1

    def close(self) -> None:
        pass


def session(server: FakeServer, name: str = "m", **options: Any) -> Session:
    """Start a session with one of a server's models."""
    return Session(server, show(server, name), SessionOptions(**options))


class Script:
    """Messages that are typed; exceptions are raised."""

    def __init__(self, *messages: str | BaseException) -> None:
        self.messages = list(messages)
        self.is_kept = True
        self.questions: list[str] = []

    def read(self) -> str:
        message = self.messages.pop(0) if self.messages else EOFError()
        if isinstance(message, BaseException):
            raise message
        return message

    def confirm(self, question: str) -> bool:
        self.questions.append(question)
        return self.read() == "y"

    def keep_history(self, *, is_kept: bool) -> None:
        self.is_kept = is_kept
