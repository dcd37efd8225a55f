"""The bundle for this Python, checked on the CPU and on Mesa's software driver in place of a card.

`make gpu-bundle-test` runs this file; `make test` does not collect it, since it needs the wheel and
the driver.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.gpu_bundle.build import LIMIT_MIB, build
from tools.gpu_bundle.steps.faults import NO_MEMORY, TAKEN
from tools.gpu_bundle.steps.parity import SMALL

ROOT = Path(__file__).parents[2]
VULKAN = ROOT / ".venv" / "vulkan"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "gpu-bundle"
    (wheel,) = (ROOT / "dist").glob("tampu-*.whl")
    version = ".".join(map(str, sys.version_info[:2]))
    cache = ROOT / ".venv" / "gpu-bundle"
    size = build(folder, wheel, cache, cuda=None, architectures=(), python=version)
    assert size < LIMIT_MIB * 2**20
    return folder


def checked(bundle: Path, report: Path, backend: str, **variables: str) -> dict[str, Any]:
    """Return the report of a check with small models."""
    python = VULKAN / "python" if backend == "vulkan" else sys.executable
    options = ["--backends", backend, "--small", "--minutes", "60"]
    command = ["sh", str(bundle / "check.sh"), str(report), *options]
    # The check has a home of its own, and the driver shall not compile its shaders each time.
    shaders = os.environ.get("MESA_SHADER_CACHE_DIR", str(Path.home() / ".cache"))  # noqa: TID251
    given = {
        **os.environ,  # noqa: TID251
        "PYTHON": str(python),
        "PYTHONPATH": "",
        "MESA_SHADER_CACHE_DIR": shaders,
        **variables,
    }
    done = subprocess.run(command, env=given, check=False, text=True, capture_output=True)
    print(done.stdout, done.stderr, (report / "report.md").read_text(), sep="\n")  # noqa: T201 - the report of a failure
    assert done.returncode == 0
    found: dict[str, Any] = json.loads((report / "report.json").read_text())["steps"]
    return found


def test_every_step_on_the_cpu_ends_with_a_figure_or_a_reason(bundle: Path, tmp_path: Path) -> None:
    steps = checked(bundle, tmp_path, "cpu")
    assert [*steps] == ["machine", "Limits of the card", *steps_of("CPU")]
    assert all(row["value"] for rows in steps.values() for row in rows)
    assert steps["Limits of the card"][0]["value"].startswith("not measured: ")
    assert len(steps["CPU: logits"]) == len(SMALL)
    assert any("tokens/s" in row["value"] for row in steps["CPU: speed of a small model"])
    values = {row["what"]: row["value"] for row in steps["CPU: faults"]}
    assert values["kill -9 in mid-step"].startswith("the request gets: ")
    assert values[TAKEN].startswith("not tried: ")


def test_the_software_driver_passes_as_a_card(bundle: Path, tmp_path: Path) -> None:
    # Without it the tests' own setting would hide the driver.
    variables = {"GALLIVM_PERF": "nopt", "GGML_VK_VISIBLE_DEVICES": "0"}
    steps = checked(bundle, tmp_path, "vulkan", **variables)
    assert [*steps] == ["machine", "Limits of the card", *steps_of("Vulkan")]
    assert "llvmpipe" in steps["Vulkan: devices"][1]["value"]
    assert all(row["passed"] for row in steps["Vulkan: logits"])
    assert all(row["passed"] for row in steps["Vulkan: tests"])
    passed = {row["what"]: row["passed"] for row in steps["Vulkan: faults"]}
    assert passed["kill -9 in mid-step"]
    assert passed[NO_MEMORY]


def steps_of(backend: str) -> list[str]:
    parts = ("devices", "logits", "speed of a small model", "tests", "faults")
    return [f"{backend}: {part}" for part in parts]
