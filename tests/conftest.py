"""What every test relies on: a clean environment, no threads left behind, repeatable examples."""

import asyncio
import gc
import inspect
import logging
import os
import signal
import threading
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from support.hidden import HIDDEN
from support.registries import DockerRegistry
from support.waiting import PATIENCE_S

from tampu.settings.settings import disable_backtraces

if TYPE_CHECKING:  # imported at run time, ggml would find devices before they are hidden
    from tampu.ml.devices import Device

# What tests of devices run on; the Makefile sets the variables of a driver, which ggml reads when
# it is imported. `vulkan` computes in F32, so the limits are the CPU's; `vulkan-f16` in F16 too.
# `one`: the only GPU of this machine, whichever it is.
DEVICES = ("stand-ins", "vulkan", "vulkan-f16", "one")

pytest_plugins = ["support.parity_report"]

GRACE_S = 60.0
SHARED = ("tampu-fork-server",)  # lives as long as the fork server, which all of a process share
OURS = ("TAMPU_", "OLLAMA_", "OTEL_")
TERMINAL = ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR")

# Few, since each run draws others; a test that needs more says so.
settings.register_profile(
    "default", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))  # noqa: TID251


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--devices", choices=DEVICES, default="stand-ins")
    parser.addoption("--samples", type=int, default=100_000, help="of tests of distributions")


def pytest_configure(config: pytest.Config) -> None:
    disable_backtraces()  # a debugger may hang where a process ends, and tests would wait for it
    if config.getoption("--devices") == "stand-ins":
        os.environ.update(HIDDEN)  # noqa: TID251


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage in what stays until the end: modules, and tens of thousands of tests.

    Each look at all of it takes as long as fifty tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own, for PATIENCE_S at most."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    asyncio.run(asyncio.wait_for(test, PATIENCE_S))
    return True


@pytest.fixture(autouse=True, scope="session")
def devices_are_there(request: pytest.FixtureRequest) -> None:
    """Fail where a driver was chosen and has no devices: most tests would pass on the CPU."""
    chosen = request.config.getoption("--devices")
    if chosen != "stand-ins":
        from tampu.ml.devices import find_devices

        found = [device.label for device in find_devices() if device.is_graphics]
        if chosen == "one":
            assert len(found) == 1
            return
        assert found == ["Vulkan.0", "Vulkan.1"]
        without_f16 = "GGML_VK_DISABLE_F16" in os.environ  # noqa: TID251
        assert without_f16 == (chosen == "vulkan")


@pytest.fixture(scope="module")
def gpu(request: pytest.FixtureRequest) -> "Iterator[Device]":
    """A stand-in for a GPU, or the first of the driver that `--devices` names."""
    from support.devices import StandIn

    from tampu.ml.devices import find_devices

    if request.config.getoption("--devices") == "stand-ins":
        stand_in = StandIn()
        yield stand_in.device
        assert stand_in.taken == 0
    else:
        yield next(device for device in find_devices() if device.is_graphics)


@pytest.fixture(scope="session")
def arithmetic(request: pytest.FixtureRequest) -> str:
    """What GPUs compute in: `f32`, or `f16`, in which many are twice as fast."""
    return "f16" if request.config.getoption("--devices") in ("vulkan-f16", "one") else "f32"


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_is_heard() -> None:
    """Let programs that tests start be interrupted.

    A shell without job control lets what it starts in the background ignore SIGINT (`make test &`
    in a script), and all that this starts would ignore it too.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):  # noqa: TID251
        if name.startswith(OURS) or name in TERMINAL:
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def the_log_level_stays() -> Iterator[None]:
    """Undo what a command that runs in this process does to the level."""
    logger = logging.getLogger("tampu")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    end = time.monotonic() + GRACE_S
    while left := [
        thread
        for thread in threading.enumerate()
        if thread not in before and thread.name not in SHARED
    ]:
        if time.monotonic() > end:
            pytest.fail(f"threads left running: {', '.join(thread.name for thread in left)}")
        time.sleep(0.01)


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    """Debian's docker-registry, started once, for those that push to it and pull from it."""
    registry = DockerRegistry(tmp_path_factory.mktemp("registry"))
    yield registry
    registry.close()
