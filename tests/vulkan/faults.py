"""A real driver of Vulkan that fails, or is too old: what the user is told, and what goes on."""

from __future__ import annotations

import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support import managed_models
from support.fault_layer import PYTHON, compile_layer
from support.managed_models import with_models
from support.tiny_model import Tiny, write_tiny

from tampu.engine.load_options import LoadOptions
from tampu.engine.prompts import TextPrompt
from tampu.engine.requests import Generate
from tampu.errors import OutOfMemoryError, RequestError, RunnerDiedError
from tampu.runner.events import Done
from tampu.runner.generate_options import GenerateOptions
from tampu.server.serving.model_manager import ModelManager
from tampu.settings.settings import runner_environment
from tampu.store.catalog import Entry

LOST, NO_MEMORY, NO_MEMORY_TO_COMPUTE = "lost", "memory", "submission"
OPTIONS, LONG = GenerateOptions(max_tokens=4), GenerateOptions(max_tokens=90)


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables that have the driver fail while there is a file."""
    return compile_layer(tmp_path_factory.mktemp("layer"))


@pytest.fixture
def fault(tmp_path: Path) -> Path:
    """The file."""
    return tmp_path / "fault"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_tiny(folder / "m.gguf", Tiny())
    return folder


def with_model(
    folder: Path,
    environment: dict[str, str],
    test: Callable[[ModelManager, Entry], Awaitable[None]],
) -> None:
    """Run a test as the server does: with the program that runs this, which has the driver."""
    options = LoadOptions(context=128, threads=1, gpu_layers=99)
    with_models(
        folder,
        options,
        runner_environment() | environment,
        lambda models, catalog: test(models, catalog.describe("m")),
    )


async def answer(models: ModelManager, entry: Entry) -> int:
    """Return the id of the process that answered."""
    return (await managed_models.answer(models, entry, OPTIONS, "Vulkan.0"))[0]


def test_a_lost_device_ends_its_requests_and_the_process_is_replaced(
    folder: Path, layer: dict[str, str], fault: Path
) -> None:
    async def test(models: ModelManager, entry: Entry) -> None:
        first = await answer(models, entry)
        fault.write_text(LOST)
        with pytest.raises(RunnerDiedError, match="the GPU was lost"):
            await answer(models, entry)
        fault.unlink()
        assert await answer(models, entry) != first

    with_model(folder, layer | {"VK_FAULT_FILE": str(fault)}, test)


def test_a_device_without_memory_is_told_as_such(
    folder: Path, layer: dict[str, str], fault: Path
) -> None:
    async def test(models: ModelManager, entry: Entry) -> None:
        fault.write_text(NO_MEMORY)
        with pytest.raises(OutOfMemoryError, match="memory"):
            await answer(models, entry)
        fault.unlink()
        await answer(models, entry)

    with_model(folder, layer | {"VK_FAULT_FILE": str(fault)}, test)


def test_memory_refused_within_an_answer_is_told_and_the_process_is_replaced(
    folder: Path, layer: dict[str, str], fault: Path
) -> None:
    seen: list[object] = []

    async def refused(models: ModelManager, entry: Entry) -> None:
        async with models.use(entry, {}, None) as model:
            async for event in model.runner.run(Generate(TextPrompt("the cat"), LONG)):
                seen.append(event)
                fault.write_text(NO_MEMORY_TO_COMPUTE)

    async def test(models: ModelManager, entry: Entry) -> None:
        first = await answer(models, entry)
        with pytest.raises(OutOfMemoryError, match=r"too little memory.*\(num_gpu\)"):
            await refused(models, entry)
        assert seen  # it had begun
        assert not isinstance(seen[-1], Done)
        fault.unlink()
        assert await answer(models, entry) != first

    with_model(folder, layer | {"VK_FAULT_FILE": str(fault)}, test)


def tampu(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PYTHON, "-m", "tampu.cli.entry", *arguments],
        env=runner_environment() | {"GGML_VK_VISIBLE_DEVICES": "0"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_program_without_a_server_ends_with_one_line(
    folder: Path, layer: dict[str, str], fault: Path
) -> None:
    fault.write_text(LOST)
    environment = layer | {"VK_FAULT_FILE": str(fault)}
    found = tampu(environment, "run", str(folder / "m.gguf"), "the cat", "--num-gpu", "99")
    assert found.returncode == 2
    assert found.stderr.splitlines()[-1] == (
        "Error: the GPU was lost while it computed, as when its driver is reset "
        "(vk::DeviceLostError)"
    )


@pytest.mark.parametrize(
    ("environment", "problem"),
    [({"VK_FAULT_API": "1"}, "has Vulkan 1.1, and ggml needs 1.2: update it"),
     ({"VK_FAULT_NO_16BIT": "1"},
      "has no 16-bit storage (storageBuffer16BitAccess), which ggml needs"),
     ({"GGML_VK_VISIBLE_DEVICES": "3"},
      "GGML_VK_VISIBLE_DEVICES=3 names no device 3: there are 0: llvmpipe"),
     ({"GGML_VK_VISIBLE_DEVICES": "all"}, "GGML_VK_VISIBLE_DEVICES=all names no device all")],
)  # fmt: skip
def test_a_device_that_ggml_cannot_use_is_one_line(
    folder: Path, layer: dict[str, str], environment: dict[str, str], problem: str
) -> None:
    doctor = tampu(layer | environment, "doctor")
    assert doctor.returncode == 1
    assert any(problem in line and "missing: " in line for line in doctor.stdout.splitlines())
    run = tampu(layer | environment, "run", str(folder / "m.gguf"), "the cat", "--num-gpu", "99")
    assert run.returncode == 2
    (line,) = (each for each in run.stderr.splitlines() if not each.startswith("ggml_vulkan:"))
    assert line.startswith("Error: ")
    assert problem in line

    async def refused(models: ModelManager, entry: Entry) -> None:
        with pytest.raises(RequestError) as error:  # 400
            await answer(models, entry)
        assert problem in str(error.value)

    with_model(folder, {"GGML_VK_VISIBLE_DEVICES": "0"} | layer | environment, refused)


def test_a_driver_that_ends_its_process_is_left_out(folder: Path, layer: dict[str, str]) -> None:
    """It is started in another process only, by no command in its own."""
    environment = layer | {"VK_FAULT_START": "1"}
    problem = "the driver ends the process with SIGABRT"
    doctor = tampu(environment, "doctor")
    assert doctor.returncode == 1  # for the choice of device 0
    assert f"\n  not loaded: Vulkan: {problem}\n" in doctor.stdout
    run = ("run", str(folder / "m.gguf"), "the cat", "-o", "num_predict=4", "--num-gpu", "99")
    chosen = tampu(environment, *run)
    assert chosen.returncode == 2
    assert chosen.stderr.splitlines()[-1] == (
        "Error: GGML_VK_VISIBLE_DEVICES=0 names no device 0: "
        f"ggml's Vulkan is not loaded: {problem}"
    )
    assert tampu(environment | {"GGML_VK_VISIBLE_DEVICES": ""}, *run).returncode == 0
