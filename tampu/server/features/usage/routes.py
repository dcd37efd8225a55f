"""Usage of each key: counted in memory for its limits, and in the database for its owner."""

from __future__ import annotations

import logging
import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any

from prometheus_client import CollectorRegistry, Counter
from starlette.requests import Request
from starlette.responses import Response

from tampu.errors import TampuError, require
from tampu.runner.events import Usage
from tampu.server.core import Core
from tampu.server.feature import Feature
from tampu.server.front.caller import Caller, current_caller
from tampu.server.front.http_response import JSONResponse
from tampu.server.front.limiter import Limiter
from tampu.server.front.routes import Route, get
from tampu.server.front.state import State, Tables

logger = logging.getLogger(__name__)

_MAX_DAYS = 366
_MAX_DIGITS = 4
_STATEMENTS = """
CREATE TABLE usage (
    day TEXT NOT NULL,
    key TEXT NOT NULL,
    model TEXT NOT NULL,
    requests INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    generated_tokens INTEGER NOT NULL,
    PRIMARY KEY (day, key, model)
) WITHOUT ROWID;
"""
TABLES = (Tables(1, _STATEMENTS),)
_COLUMNS = "requests, prompt_tokens, cached_tokens, generated_tokens"


class KeyUsage:
    """The usage of all keys."""

    def __init__(self, state: State, limiter: Limiter, registry: CollectorRegistry) -> None:
        """Keep it in this state; the registry gets metrics of it."""
        self._state, self._limiter = state, limiter
        self._tokens = Counter(
            "tampu_key_tokens",
            "Tokens of each API key, by its name: read (prompt), of these cached, generated.",
            ["key", "kind"],
            registry=registry,
        )
        self._requests = Counter(
            "tampu_key_requests", "Requests that used a model.", ["key"], registry=registry
        )

    async def load(self) -> None:
        """Count the tokens that earlier servers have counted today, if they can be read."""
        today = self._limiter.today()

        def work(db: sqlite3.Connection) -> list[sqlite3.Row]:
            query = (
                "SELECT key, SUM(prompt_tokens + generated_tokens) AS tokens FROM usage "
                "WHERE day = ? GROUP BY key"
            )
            return db.execute(query, (today,)).fetchall()

        try:
            rows = await self._state.run(work)
        except TampuError as error:
            logger.error("the usage of keys is counted in memory only: %s", error)
            return
        for row in rows:
            self._limiter.spend(row["key"], row["tokens"])

    def used(self, model: str, usage: Usage) -> None:
        """Count the usage of a request that has ended; without a key nothing."""
        name = current_caller().name
        if not name:
            return
        self._limiter.spend(name, usage.prompt_tokens + usage.generated_tokens)
        tokens = (usage.prompt_tokens, usage.cached_tokens, usage.generated_tokens)
        self._requests.labels(name).inc()
        for kind, count in zip(("prompt", "cached", "generated"), tokens, strict=True):
            self._tokens.labels(name, kind).inc(count)
        values = (self._limiter.today(), name, model, 1, *tokens)

        def work(db: sqlite3.Connection) -> None:
            db.execute(
                f"INSERT INTO usage (day, key, model, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET requests = requests + excluded.requests, "
                "prompt_tokens = prompt_tokens + excluded.prompt_tokens, "
                "cached_tokens = cached_tokens + excluded.cached_tokens, "
                "generated_tokens = generated_tokens + excluded.generated_tokens",
                values,
            )

        self._state.submit(work)

    async def listed(self, caller: Caller, days: int) -> list[dict[str, Any]]:
        """Return what the caller may see of the last days, the newest first."""
        first = datetime.fromisoformat(self._limiter.today()).replace(tzinfo=UTC)
        since = (first - timedelta(days=days - 1)).date().isoformat()

        def work(db: sqlite3.Connection) -> list[dict[str, Any]]:
            found = db.execute(
                f"SELECT day, key, model, {_COLUMNS} FROM usage WHERE day >= ? "
                "ORDER BY day DESC, key, model",
                (since,),
            )
            return [dict(zip(row.keys(), row, strict=True)) for row in found]

        return [row for row in await self._state.run(work) if caller.may_see(row["key"])]

    def limits(self, caller: Caller) -> dict[str, Any]:
        """Return the limits of a caller, and what is left of them."""
        most = caller.limits.tokens_per_day
        spent = self._limiter.spent(caller.name)
        return {
            "requests_per_minute": caller.limits.requests_per_minute,
            "tokens_per_day": most,
            "tokens_left": None if most is None else max(most - spent, 0),
            "models": caller.limits.models,
            "priority": caller.priority,
        }


def usage(core: Core) -> Feature:
    """Return the feature: what keys have used, counted for their limits and their owners."""
    counted = KeyUsage(core.state, core.limiter, core.metrics.registry)
    core.metrics.on_used.append(counted.used)

    async def load() -> None:
        if core.keys:
            await counted.load()

    return Feature(routes=usage_routes(counted), open=load)


def usage_routes(usage: KeyUsage) -> list[Route]:
    """Return the routes."""

    async def show(request: Request) -> Response:
        """`GET /v1/usage`: what keys have used, by day and model."""
        text = request.query_params.get("days", "1")
        is_number = text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS
        require(is_number and 1 <= int(text) <= _MAX_DAYS, f"days must be 1 to {_MAX_DAYS}")
        caller = current_caller()
        data = await usage.listed(caller, int(text)) if caller.name else []
        found = {"object": "list", "key": caller.name or None, "data": data}
        return JSONResponse(found | {"limits": usage.limits(caller)})

    return [get("/v1/usage", show)]
