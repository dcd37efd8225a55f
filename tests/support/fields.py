"""Fields of requests, each with what the API says it does: has an effect, has none, or is refused.

A table names every field that the client package knows. A field of a new version of the package
that the table lacks fails a test, so that nobody can forget to decide about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args, get_type_hints

import httpx
import pytest

Ask: TypeAlias = Callable[..., Any]
USER = [{"role": "user", "content": "x"}]


@dataclass(frozen=True)
class Route:
    """Where a table's fields go, and a request that is answered without them."""

    client: httpx.Client
    path: str
    plain: Mapping[str, Any]

    def post(self, **more: Any) -> httpx.Response:
        """Ask with more fields; None takes one away."""
        body = {name: value for name, value in {**self.plain, **more}.items() if value is not None}
        return self.client.post(self.path, json=body)

    def ask(self, **more: Any) -> Any:
        """Return the answer's object."""
        response = self.post(**more)
        assert response.status_code == 200, response.text
        return response.json()


Check: TypeAlias = Callable[[Route, str], None]


def effect(holds: Callable[[Ask], bool]) -> Check:
    """The field does something, which `holds(ask)` shows."""

    def check(route: Route, name: str) -> None:
        assert holds(route.ask), name

    return check


def nothing(*values: Any) -> Check:
    """The field is taken, and the answer says the same as without it."""

    def check(route: Route, name: str) -> None:
        plain = told(route.ask())
        for value in values:
            assert told(route.ask(**{name: value})) == plain, (name, value)

    return check


def refused(*values: Any, named: str = "") -> Check:
    """The field is refused by its name."""

    def check(route: Route, name: str) -> None:
        for value in values:
            response = route.post(**{name: value})
            assert response.status_code == 400, (name, value, response.text)
            assert (named or name) in response.json()["error"]["message"]

    return check


def streams(end: bytes) -> Check:
    """The field makes a stream of the answer, with this at its end."""

    def check(route: Route, name: str) -> None:
        response = route.post(**{name: True})
        assert response.headers["content-type"] == "text/event-stream"
        assert response.content.endswith(end)

    return check


def both(*checks: Check) -> Check:
    """All of these."""

    def check(route: Route, name: str) -> None:
        for one in checks:
            one(route, name)

    return check


def text(answer: Any) -> Any:
    """Return the text of a chat's or a completion's answer by OpenAI's API."""
    [choice] = answer["choices"]
    return choice["text"] if "text" in choice else choice["message"]["content"]


def said(answer: Any) -> str:
    """Return the text of a response by OpenAI's API."""
    return "".join(
        part["text"]
        for item in answer["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


def read(answer: Any) -> Any:
    """Return the number of prompt tokens by OpenAI's API."""
    return answer["usage"]["prompt_tokens"]


def told(answer: Any) -> Any:
    """Return an answer without what is another each time: ids, times, and what was cached."""
    if isinstance(answer, dict):
        changing = (
            "id", "created", "created_at", "completed_at", "usage", "timings", "item_id", "call_id"
        )  # fmt: skip
        return {name: told(value) for name, value in answer.items() if name not in changing}
    return [told(item) for item in answer] if isinstance(answer, list) else answer


def keys_of(*kinds: type) -> list[str]:
    """Return the names of all fields of a package's request types."""
    return sorted({name for kind in kinds for name in get_type_hints(kind)})


def probed(table: Mapping[str, Check]) -> pytest.MarkDecorator:
    """Return the fields of a table as a test's parameters."""
    return pytest.mark.parametrize("name", [*table])


def type_of(kind: Any) -> str:
    """Return the `type` of a package's kind of tool or block."""
    hints = get_type_hints(kind)["type"]
    return next(name for name in _leaves(hints) if isinstance(name, str))


def _leaves(hint: Any) -> list[Any]:
    return [leaf for one in get_args(hint) for leaf in (_leaves(one) or [one])]
