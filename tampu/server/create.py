"""Ollama's native API: making a model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

from starlette.requests import Request
from starlette.responses import Response

from tampu.errors import ModelNotFoundError
from tampu.server.client_address import remote_for
from tampu.server.http_response import EventsAnswer
from tampu.server.manage import writable_store
from tampu.server.routes import Access, Route, post
from tampu.server.serving import Serving
from tampu.server.threadpool import Stepper
from tampu.server.wire.create import CreateRequest
from tampu.server.wire.manage import ProgressWriter
from tampu.store.catalog import Catalog
from tampu.store.create import creating
from tampu.store.names import ModelName
from tampu.store.registry.options import RemoteOptions
from tampu.store.registry.progress import Progress
from tampu.store.registry.pull import pull


def create_routes(serving: Serving, stepper: Stepper, remote: RemoteOptions) -> list[Route]:
    """Return the route that makes models."""

    async def create(request: Request, wanted: CreateRequest) -> Response:
        """`POST /api/create`: make a model of another, or of files that were sent before."""
        name, store, recipe = wanted.parsed(), writable_store(serving), wanted.recipe()

        def begin() -> Iterator[Progress]:
            for source in recipe.modelfile.sources:
                if not is_there(serving.catalog, source):
                    base = ModelName.parse(source)
                    steps = pull(store, base, remote_for(request, remote, base))
                    yield from (step for step in steps if step.status != "success")
            yield from creating(serving.catalog.library, name, recipe)

        events: AsyncGenerator[Progress, None] = stepper.steps(begin)
        return EventsAnswer(events, ProgressWriter(), is_streaming=wanted.stream is not False)

    return [post("/api/create", create, CreateRequest, Access.MANAGE)]


def is_there(catalog: Catalog, name: str) -> bool:
    """Whether there is a model of that name."""
    try:
        catalog.find(name)
    except ModelNotFoundError:
        return False
    return True
