"""A GPU that fails while it computes: its requests are told, and the next one is answered."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support import failing_gpu, managed_models
from support.hidden import HIDDEN
from support.managed_models import with_models
from support.tiny_model import Tiny, write_tiny
from support.waiting import PATIENCE_S

from tampu.engine.load_options import LoadOptions
from tampu.errors import OutOfMemoryError, RunnerDiedError
from tampu.runner.generate_options import GenerateOptions
from tampu.server.serving.model_manager import ModelManager
from tampu.store.catalog import Entry

pytestmark = [pytest.mark.server, pytest.mark.slow]

LOST, NO_MEMORY = "-1", "-2"  # ggml's statuses
OPTIONS = GenerateOptions(max_tokens=4)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """While it exists, the GPU ends with the status in it."""
    return tmp_path / "status"


def with_model(
    tmp_path: Path, file: Path, test: Callable[[ModelManager, Entry], Awaitable[None]]
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    write_tiny(folder / "m.gguf", Tiny())
    with_models(
        folder,
        LoadOptions(context=128, threads=1, slots=4),
        {"PATH": os.defpath, "PYTHONPATH": str(Path(__file__).parents[1])} | HIDDEN,
        lambda models, catalog: asyncio.wait_for(test(models, catalog.describe("m")), PATIENCE_S),
        program=(sys.executable, str(Path(failing_gpu.__file__)), str(file)),
    )


async def answer(models: ModelManager, entry: Entry) -> int:
    """Return the id of the process that answered."""
    return (await managed_models.answer(models, entry, OPTIONS, "GPU.0"))[0]


def test_a_lost_gpu_ends_its_requests_and_the_process_is_replaced(
    tmp_path: Path, file: Path
) -> None:
    async def test(models: ModelManager, entry: Entry) -> None:
        first = await answer(models, entry)
        file.write_text(LOST)
        asked = (answer(models, entry) for _ in range(3))
        for error in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(error, RunnerDiedError)
            assert "computing failed on GPU.0 (ggml's status -1)" in str(error)
        file.unlink()
        assert await answer(models, entry) != first

    with_model(tmp_path, file, test)


def test_a_gpu_without_memory_to_compute_fails_one_request_and_stays(
    tmp_path: Path, file: Path
) -> None:
    async def test(models: ModelManager, entry: Entry) -> None:
        first = await answer(models, entry)
        file.write_text(NO_MEMORY)
        with pytest.raises(OutOfMemoryError, match=r"no memory was left .* on GPU\.0.*num_gpu"):
            await answer(models, entry)
        file.unlink()
        assert await answer(models, entry) == first

    with_model(tmp_path, file, test)
