"""The models in memory: loaded once, kept for a while, reloaded, made room for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import virtual_time
from support.fake_runner import FakeStart
from support.virtual_time import pass_time

from tampu.engine.backend import ModelFacts
from tampu.engine.load_options import LoadOptions
from tampu.errors import LoadCancelledError, ModelFileError, OutOfMemoryError, RequestError
from tampu.server.serving.managed_model import ManagedModel
from tampu.server.serving.model_manager import ModelManager
from tampu.store.catalog import Catalog, Entry

ANY: dict[str, int] = {}


@pytest.fixture
def entry(model_folder: Path) -> Callable[[str], Entry]:
    return Catalog(model_folder).describe


@pytest.fixture
def start() -> FakeStart:
    return FakeStart()


def run(
    start: FakeStart,
    test: Callable[[Any], Coroutine[Any, Any, Any]],
    *,
    keep_alive_s: float = 60.0,
    max_models: int = 3,
    memory_bytes: int | None = None,
    **more: Any,
) -> None:
    """Run `test(models)` in virtual time, on a keeper that is closed afterwards."""

    async def with_models() -> None:
        options = LoadOptions(context=1024)
        models = ModelManager(
            start,
            options=options,
            keep_alive_s=keep_alive_s,
            max_models=max_models,
            memory_bytes=memory_bytes,
            **more,
        )
        try:
            await test(models)
        finally:
            await models.close()

    virtual_time.run(with_models())
    assert all(not runner.is_alive for _, runner in start.runners)


def names(models: ModelManager) -> list[Any]:
    return sorted(model.entry.name for model in models.models())


async def touch(
    models: ModelManager,
    entry: Entry,
    overrides: dict[Any | str, Any] = ANY,
    keep_alive_s: float | None = None,
) -> ManagedModel:
    async with models.use(entry, overrides, keep_alive_s) as model:
        return model


def test_concurrent_requests_load_a_model_once(
    start: FakeStart, entry: Callable[[str], Entry]
) -> None:
    start.delay_s = 0.01

    async def test(models: ModelManager) -> None:
        used = await asyncio.gather(*(touch(models, entry("m")) for _ in range(50)))
        assert len(set(map(id, used))) == 1

    run(start, test)
    assert len(start.runners) == 1


def test_a_manager_that_may_not_reload_refuses_other_options(
    start: FakeStart, entry: Callable[[str], Entry]
) -> None:
    async def test(models: ModelManager) -> None:
        await touch(models, entry("m"))
        with pytest.raises(RequestError, match="loaded with context=1024 here"):
            await touch(models, entry("m"), {"context": 512})
        await touch(models, entry("m"), {"context": 1024})

    run(start, test, may_reload=False)
    assert len(start.runners) == 1


def test_all_waiting_requests_get_the_error_of_a_failed_load(
    start: FakeStart, entry: Callable[[str], Entry]
) -> None:
    start.error = ModelFileError("magic", "is wrong")
    start.delay_s = 0.01

    async def test(models: ModelManager) -> None:
        loads = (touch(models, entry("m")) for _ in range(5))
        errors = await asyncio.gather(*loads, return_exceptions=True)
        assert {type(error) for error in errors} == {ModelFileError}
        start.error = None
        await touch(models, entry("m"))

    run(start, test)


@pytest.mark.parametrize(
    ("error", "warnings"), [(RequestError("no such device"), 0), (ModelFileError("m", "is bad"), 1)]
)
def test_a_request_is_told_of_its_mistake_without_a_warning_in_the_log(
    start: FakeStart,
    entry: Callable[[str], Entry],
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    warnings: int,
) -> None:
    start.error = error

    async def test(models: ModelManager) -> None:
        with pytest.raises(type(error)):
            await touch(models, entry("m"))

    with caplog.at_level(logging.INFO):
        run(start, test)
    found = caplog.records
    levels = [r.levelno for r in found if r.getMessage().startswith("loading failed")]
    assert levels == [logging.WARNING if warnings else logging.INFO]


def test_a_mistake_of_which_nobody_is_told_is_a_warning(
    start: FakeStart, entry: Callable[[str], Entry], caplog: pytest.LogCaptureFixture
) -> None:
    start.error = RequestError("no such device")
    start.delay_s = 0.05

    async def test(models: ModelManager) -> None:
        left = asyncio.create_task(touch(models, entry("m")))
        await pass_time(0.01)
        left.cancel()
        await pass_time(0.1)

    run(start, test)
    assert "loading failed: no such device" in caplog.text


def test_loading_continues_when_the_first_request_is_cancelled(
    start: FakeStart, entry: Callable[[str], Entry]
) -> None:
    start.delay_s = 0.05

    async def test(models: ModelManager) -> None:
        first = asyncio.create_task(touch(models, entry("m")))
        await pass_time(0.01)
        assert [loading.waiting for loading in models.loading()] == [1]
        first.cancel()
        await touch(models, entry("m"))

    run(start, test)
    assert len(start.runners) == 1


def test_idle_model_is_unloaded_after_its_keep_alive(
    start: FakeStart, entry: Callable[[str], Entry]
) -> None:
    async def test(models: ModelManager) -> None:
        await touch(models, entry("m"), keep_alive_s=20)
        await touch(models, entry("base"), keep_alive_s=float("inf"))
        await pass_time(19.9)
        assert names(models) == ["base", "m"]
        await pass_time(0.1)
        assert names(models) == ["base"]
        await pass_time(10**6)
        assert names(models) == ["base"]

    run(start, test)


def test_using_a_model_restarts_its_keep_alive(
    start: FakeStart, entry: Callable[[str], Entry]
) -> None:
    async def test(models: ModelManager) -> None:
        async with models.use(entry("m"), ANY, 2):
            await pass_time(5)
            assert names(models) == ["m"]
        await pass_time(1.9)
        assert names(models) == ["m"]
        await pass_time(0.1)
        assert names(models) == []

    run(start, test)


def test_zero_keep_alive_unloads_immediately(
    start: FakeStart, entry: Callable[[str], Entry]
) -> None:
    async def test(models: ModelManager) -> None:
        await touch(models, entry("m"), keep_alive_s=0)
        assert names(models) == []
        await asyncio.sleep(0)
        assert not start.runners[0][1].is_alive

    run(start, test)


def test_unloading_waits_for_the_last_user(start: FakeStart, entry: Callable[[str], Entry]) -> None:
    async def test(models: ModelManager) -> None:
        async with models.use(entry("m"), ANY, None) as model:
            await models.unload("m")
            assert names(models) == []
            assert model.runner.is_alive
        await asyncio.sleep(0)
        assert not model.runner.is_alive
        await models.unload("m")

    run(start, test)


def test_other_load_options_replace_an_idle_model(
    start: FakeStart, entry: Callable[[str], Entry]
) -> None:
    async def test(models: ModelManager) -> None:
        await touch(models, entry("m"))
        await touch(models, entry("m"), {"context": 512})
        await touch(models, entry("m"))
        await touch(models, entry("m"), {"context": 512})

    run(start, test)
    assert [runner.options.context for _, runner in start.runners] == [1024, 512]


def test_other_load_options_wait_until_the_model_is_idle(
    start: FakeStart, entry: Callable[[str], Entry]
) -> None:
    async def test(models: ModelManager) -> None:
        async with models.use(entry("m"), ANY, None) as first:
            other = asyncio.create_task(touch(models, entry("m"), {"context": 512}))
            await pass_time(1000)
            assert not other.done()
            assert first.runner.is_alive
        assert (await other).options.context == 512

    run(start, test)


def test_the_context_is_at_most_what_the_model_was_trained_for(
    start: FakeStart, entry: Callable[[str], Entry]
) -> None:
    async def test(models: ModelManager) -> None:
        models.options = LoadOptions(context=100_000)
        assert (await touch(models, entry("m"))).options.context == 2048

    run(start, test)


def test_crashed_model_is_reloaded(start: FakeStart, entry: Callable[[str], Entry]) -> None:
    async def test(models: ModelManager) -> None:
        model = await touch(models, entry("m"))
        runner: Any = model.runner
        runner.is_alive = False
        assert (await touch(models, entry("m"))).runner is not model.runner

    run(start, test)


def test_least_recently_used_idle_model_is_evicted(
    start: FakeStart, entry: Callable[[str], Entry]
) -> None:
    async def test(models: ModelManager) -> None:
        await touch(models, entry("m"), keep_alive_s=50)
        await touch(models, entry("base"), keep_alive_s=10)
        await touch(models, entry("m"))
        await touch(models, entry("thinker"), keep_alive_s=30)
        assert names(models) == ["m", "thinker"]

    run(start, test, max_models=2)


def test_model_kept_forever_is_evicted_last(
    start: FakeStart, entry: Callable[[str], Entry]
) -> None:
    async def test(models: ModelManager) -> None:
        await touch(models, entry("m"), keep_alive_s=float("inf"))
        await touch(models, entry("base"))
        await touch(models, entry("thinker"))
        assert names(models) == ["m", "thinker"]

    run(start, test, max_models=2)


def test_model_in_use_is_evicted_when_its_requests_end(
    start: FakeStart, entry: Callable[[str], Entry]
) -> None:
    async def test(models: ModelManager) -> None:
        async with models.use(entry("m"), ANY, None) as first:
            other = asyncio.create_task(touch(models, entry("base")))
            await pass_time(1)
            again = asyncio.create_task(touch(models, entry("m")))
            await pass_time(1)
            assert not other.done()
            assert not again.done()
            assert first.runner.is_alive
        assert (await other).entry.name == "base"
        assert (await again).entry.name == "m"

    run(start, test, max_models=1)
    assert [name for name, _ in start.runners] == ["m", "base", "m"]


def test_many_models_take_turns_and_no_request_is_lost(
    start: FakeStart, entry: Callable[[str], Entry]
) -> None:
    start.delay_s = 0.001
    wanted = ["m", "base", "thinker"] * 10

    async def ask(models: ModelManager, name: str) -> str:
        async with models.use(entry(name), ANY, None) as model:
            assert model.runner.is_alive
            await pass_time(0.001)
            assert model.runner.is_alive
            return model.entry.name

    async def test(models: ModelManager) -> None:
        assert await asyncio.gather(*(ask(models, name) for name in wanted)) == wanted

    run(start, test, max_models=1)


def test_constantly_used_model_does_not_starve_others(
    start: FakeStart, entry: Callable[[str], Entry]
) -> None:
    order = []

    async def ask(models: ModelManager, name: str) -> None:
        async with models.use(entry(name), ANY, None):
            order.append(name)
            await pass_time(0.002)

    async def ask_always(models: ModelManager) -> None:
        while True:
            await ask(models, "m")

    async def test(models: ModelManager) -> None:
        busy = [asyncio.create_task(ask_always(models)) for _ in range(5)]
        await pass_time(0.05)
        before = len(order)
        assert before > 10
        await asyncio.gather(ask(models, "base"), ask(models, "thinker"), ask(models, "base"))
        assert order[before:].count("m") <= 4 * len(busy)
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)

    run(start, test, max_models=1)


def test_models_share_memory_by_measured_use(
    start: FakeStart, entry: Callable[[str], Entry]
) -> None:
    async def test(models: ModelManager) -> None:
        for name in ("m", "base", "m", "base", "thinker"):
            await touch(models, entry(name))
        assert names(models) == ["base", "thinker"]

    run(start, test, memory_bytes=2999)
    assert [name for name, _ in start.runners] == ["m", "base", "thinker"]


def test_load_out_of_memory_is_retried_after_an_eviction(
    start: FakeStart, entry: Callable[[str], Entry]
) -> None:
    start.memory = 1500

    async def test(models: ModelManager) -> None:
        await touch(models, entry("m"))
        await touch(models, entry("base"))
        assert names(models) == ["base"]
        start.memory = 500
        with pytest.raises(OutOfMemoryError):
            await touch(models, entry("m"))
        assert names(models) == []

    run(start, test)


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0])
def test_clock_jump_does_not_affect_unloading(
    start: FakeStart, entry: Callable[[str], Entry], jump_s: float
) -> None:
    now_s = [1_700_000_000.0]

    async def test(models: ModelManager) -> None:
        await touch(models, entry("m"), keep_alive_s=60)
        await touch(models, entry("base"), keep_alive_s=10)
        assert [model.expires_s - now_s[0] for model in models.models()] == [60, 10]
        now_s[0] += jump_s
        await pass_time(9.9)
        assert names(models) == ["base", "m"]
        await pass_time(0.1)
        assert names(models) == ["m"]
        await pass_time(50)
        assert names(models) == []

    run(start, test, clock=lambda: now_s[0])


class OnDevices(FakeStart):
    """Loads models to a device that has so many bytes, all of each if there is room."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    async def __call__(self, entry: Any, options: Any) -> Any:
        runner = await super().__call__(entry, options)
        alive = [one for _, one in self.runners if one.is_alive and one is not runner]
        free = self.size - sum(one.facts.device_bytes for one in alive)
        taken = min(free, entry.info.size_bytes) if options.gpu_layers else 0
        runner.facts = ModelFacts(options.context, 1000 + taken, taken, device_free=free - taken)
        return runner


def test_model_without_device_memory_evicts_the_least_recently_used(
    entry: Callable[[str], Entry],
) -> None:
    size = entry("m").info.size_bytes
    start = OnDevices(2 * size + size // 2)

    async def test(models: ModelManager) -> None:
        for name in ("m", "base", "thinker"):
            await touch(models, entry(name))
        assert names(models) == ["base", "thinker"]
        processor = {"gpu_layers": 0}
        await touch(models, entry("m"), processor)
        assert names(models) == ["base", "m", "thinker"]

    run(start, test)
    assert all(one.facts.device_bytes for name, one in start.runners if name != "m")


def test_model_larger_than_the_device_has_it_alone_and_uses_the_cpu_too(
    entry: Callable[[str], Entry],
) -> None:
    start = OnDevices(entry("m").info.size_bytes // 2)

    async def test(models: ModelManager) -> None:
        await touch(models, entry("m"))
        await touch(models, entry("base"))
        assert names(models) == ["base"]
        await touch(models, entry("base"))

    run(start, test)
    assert len(start.runners) == 2


def test_changed_file_is_reloaded(start: FakeStart, entry: Callable[[str], Entry]) -> None:
    async def test(models: ModelManager) -> None:
        first = await touch(models, entry("m"))
        changed = replace(entry("m"), modified_s=entry("m").modified_s + 1)
        assert (await touch(models, changed)).runner is not first.runner

    run(start, test)


def test_shutdown_fails_requests_that_wait_for_a_load(
    start: FakeStart, entry: Callable[[str], Entry]
) -> None:
    start.delay_s = 5

    async def test(models: ModelManager) -> None:
        waiting = asyncio.create_task(touch(models, entry("m")))
        await pass_time(0.01)
        await models.close()
        with pytest.raises(LoadCancelledError):
            await waiting

    run(start, test)
