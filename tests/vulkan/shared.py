"""Two models in processes of their own share a real driver."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.managed_models import answer, with_models
from support.tiny_model import Tiny, write_tiny

from tampu.engine.load_options import LoadOptions
from tampu.runner.generate_options import GenerateOptions
from tampu.server.serving.model_manager import ModelManager
from tampu.settings.settings import runner_environment
from tampu.store.catalog import Catalog

OPTIONS = GenerateOptions(max_tokens=30, temperature=0.0, ignore_eos=True)


def test_both_answer_at_the_same_time_as_each_does_alone(tmp_path: Path) -> None:
    write_tiny(tmp_path / "first.gguf", Tiny())
    write_tiny(tmp_path / "second.gguf", Tiny(layers=3, seed=1))
    alone: list[list[int]] = []

    async def one_after_the_other(models: ModelManager, catalog: Catalog) -> None:
        for name in ("first", "second"):
            alone.append((await answer(models, catalog.describe(name), OPTIONS, "Vulkan.0"))[1])

    async def together(models: ModelManager, catalog: Catalog) -> None:
        asked = (
            answer(models, catalog.describe(name), OPTIONS, "Vulkan.0")
            for name in ("first", "second") * 2
        )
        (one, first), (other, second), *again = await asyncio.gather(*asked)
        assert [first, second] == alone
        assert one != other
        assert again == [(one, first), (other, second)]

    options = LoadOptions(context=128, threads=1, gpu_layers=99)
    with_models(tmp_path, options, runner_environment(), one_after_the_other)
    with_models(tmp_path, options, runner_environment(), together)
