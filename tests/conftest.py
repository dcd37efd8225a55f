"""What every test relies on: a clean environment, no threads left behind, repeatable examples."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from support.hidden import HIDDEN
from support.registries import DockerRegistry

pytest_plugins = ["support.parity_report"]

GRACE_S = 60.0
SHARED = ("tampu-fork-server",)  # lives as long as the fork server, which all of a process share
OURS = ("TAMPU_", "OLLAMA_", "OTEL_")
TERMINAL = ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR")

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))  # noqa: TID251


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--devices", choices=("stand-ins", "vulkan"), default="stand-ins")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--devices") == "stand-ins":
        os.environ.update(HIDDEN)  # noqa: TID251


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
