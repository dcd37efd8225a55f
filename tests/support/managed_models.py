"""Models of a folder in processes of their own, as a server has them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from support.fork_server import FORK_SERVER

from tampu.engine.load_options import LoadOptions
from tampu.engine.prompts import TextPrompt
from tampu.engine.requests import Generate
from tampu.runner.events import Done, TextDelta
from tampu.runner.generate_options import GenerateOptions
from tampu.server.serving.model_manager import ModelManager
from tampu.store.catalog import Catalog, Entry
from tampu.worker.client import WorkerProcess
from tampu.worker.start import PROGRAM, start_worker


def with_models(
    folder: Path,
    options: LoadOptions,
    environment: Mapping[str, str],
    test: Callable[[ModelManager, Catalog], Awaitable[None]],
    *,
    program: Sequence[str] = PROGRAM,
) -> None:
    """Run a test with the models of a folder, two at once at most.

    Args:
        folder: of their files.
        options: how they are loaded.
        environment: of their processes, complete.
        test: gets what loads them, and their names.
        program: of their processes.
    """

    async def start(entry: Entry, options: LoadOptions) -> WorkerProcess:
        return await start_worker(
            entry.info.path,
            options,
            name=entry.name,
            environment=environment,
            fork_server=FORK_SERVER,
            program=program,
        )

    async def run() -> None:
        models = ModelManager(start, options=options, keep_alive_s=600.0, max_models=2)
        try:
            await test(models, Catalog(folder))
        finally:
            await models.close()

    asyncio.run(run())


async def answer(
    models: ModelManager, entry: Entry, options: GenerateOptions, device: str
) -> tuple[int, list[int]]:
    """Return the id of the process that answered on a device, and the tokens of its answer."""
    async with models.use(entry, {}, None) as model:
        assert model.runner.facts.placement.shares[0].name == device
        found = [
            event async for event in model.runner.run(Generate(TextPrompt("the cat"), options))
        ]
        assert isinstance(found[-1], Done)
        tokens = [each for event in found if isinstance(event, TextDelta) for each in event.tokens]
        return model.runner.pid, tokens
