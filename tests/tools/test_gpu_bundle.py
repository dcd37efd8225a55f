"""The check of a GPU: its report, what it says of cards that it cannot check, and its steps."""

from __future__ import annotations

import json
import platform
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tools.gpu_bundle import check
from tools.gpu_bundle.card import Card, can_run, find_card, parse_card, problem_of
from tools.gpu_bundle.check import MODELS, Bundle, Step, run_step
from tools.gpu_bundle.references import coarse
from tools.gpu_bundle.report import Report, Row, print_begin, print_row, read_line
from tools.wheel.compile_cuda import CompileError, _link_libraries, compile_cuda

HOPPER = Card("NVIDIA H100 80GB HBM3", "580.159.04", 90, 81559, 80990)


def test_nvidia_smis_line_is_read() -> None:
    assert parse_card("NVIDIA H100 80GB HBM3, 580.159.04, 9.0, 81559, 80990") == HOPPER
    blackwell = parse_card("NVIDIA GeForce RTX 5090, 590.1, 12.0, 32607, 32000")
    assert isinstance(blackwell, Card)
    assert blackwell.architecture == 120
    assert "cannot be read" in str(parse_card("Failed to initialize NVML: Driver/library"))


@pytest.mark.parametrize(
    ("card", "words"),
    [
        (HOPPER, ""),
        (Card("A", "550.54.15", 90, 81559, 80990), "too old for CUDA 13: install version 580"),
        (Card("A", "?", 90, 81559, 80990), "too old"),
        (Card("Tesla V100", "580.1", 70, 16384, 16000), "capability 7.0; CUDA 13 needs 7.5"),
        (Card("A", "580.1", 86, 8192, 900), "900 of 8192 MiB free; the check needs 4096"),
    ],
)
def test_a_card_that_cannot_be_checked_gets_one_line(card: Card, words: str) -> None:
    problem = problem_of(card)
    assert (words in problem) if words else problem == ""
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("architecture", "compiled", "runs"),
    [
        (90, [90], True),
        (89, [80, 86], True),
        (86, [89], False),
        (100, [90], False),
        (103, [100], True),
        (120, [90, 120], True),
        (121, [120], False),
        (90, [], False),
    ],
)
def test_code_runs_on_later_cards_of_its_generation(
    architecture: int, compiled: list[int], runs: bool
) -> None:
    assert can_run(Card("A", "580", architecture, 1, 1), compiled) is runs


def test_without_a_driver_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert find_card() == "no NVIDIA driver: nvidia-smi is not on the PATH"


def test_rows_are_read_as_they_were_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_row("logits | llama", "error 1e-3", passed=True)
    print_begin("llama")
    lines = capsys.readouterr().out.splitlines()
    assert read_line(lines[0]) == Row("logits | llama", "error 1e-3", passed=True)
    assert read_line(lines[1]) == "llama"
    assert [read_line(line) for line in ("ggml_cuda_init: found 1", "{}", "[1]", "7")] == 4 * [None]


def test_the_report_is_complete_after_each_row(tmp_path: Path) -> None:
    report = Report(tmp_path)
    report.add("speed", Row("tg128", "1|2 tokens/s"))
    report.add("logits", Row("llama", "error 1", passed=False))
    assert "| tg128 | 1\\|2 tokens/s |  |" in (tmp_path / "report.md").read_text()
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["failures"] == 1
    assert written["steps"]["logits"] == [{"what": "llama", "value": "error 1", "passed": False}]
    assert {each.name for each in tmp_path.iterdir()} == {"report.md", "report.json"}


def made_bundle(folder: Path, **about: object) -> Bundle:
    here = ".".join(map(str, sys.version_info[:2]))
    known = {
        "python": here,
        "machine": platform.machine(),
        "architectures": [],
        "expected": [],
    } | about
    (folder / "wheels").mkdir(parents=True)
    (folder / "bundle.json").write_text(json.dumps(known))
    with tarfile.open(folder / MODELS, "w:xz"):
        pass
    return Bundle(folder, folder / "work")


def test_a_bundle_for_another_python_or_machine_says_what_to_do(tmp_path: Path) -> None:
    other = made_bundle(tmp_path / "a", python="3.9").unpack()
    assert "for Python 3.9" in other
    assert "make gpu-bundle BUNDLE_PYTHON=" in other
    assert "for Linux on sparc" in made_bundle(tmp_path / "b", machine="sparc").unpack()
    bare = made_bundle(tmp_path / "c", expected=["numpy", "not_there"]).unpack()
    assert bare == "this Python has no not_there: install them, or set PYTHON"


def test_a_card_without_code_and_without_a_compiler_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "_toolkit", lambda: None)
    with pytest.raises(CompileError, match=r"this card needs 90.*CUDA_ARCHITECTURES=90"):
        check.cuda_library(made_bundle(tmp_path), HOPPER)


def test_without_nvcc_nothing_is_compiled(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="has no bin/nvcc"):
        compile_cuda(tmp_path, tmp_path / "build", tmp_path, ["90"], 1)


def test_the_toolkit_is_where_the_called_nvcc_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolkit, programs = tmp_path / "cuda-13.0", tmp_path / "bin"
    for folder, text in (
        (toolkit / "bin", f"echo '#$ _SPACE_= '; echo '#$ TOP={toolkit}/bin/..' >&2"),
        (programs, f'exec {toolkit}/bin/nvcc "$@"'),
    ):
        folder.mkdir(parents=True)
        (folder / "nvcc").write_text(f"#!/bin/sh\n{text}\n")
        (folder / "nvcc").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    assert check._toolkit() == toolkit
    monkeypatch.setattr(sys, "path", [str(tmp_path / "dist-packages"), "elsewhere"])
    packages = tmp_path / "dist-packages" / "nvidia" / "cu13"
    (packages / "lib").mkdir(parents=True)
    assert check.nvidia_packages() == [packages]
    folders = check.library_path().split(":")
    assert folders[:3] == [str(packages / "lib"), f"{toolkit}/lib64", f"{toolkit}/lib"]


def test_libraries_of_packages_are_found_without_their_versions(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    for name in ("libcublas.so.13", "libcublasLt.so.13", "libcublas_static.a"):
        (tmp_path / "lib" / name).touch()
    links = tmp_path / "links"
    for _ in range(2):  # also by the call that goes on
        assert _link_libraries([tmp_path], links) == links
    found = {each.name: each.resolve().name for each in links.iterdir()}
    assert found == {"libcublas.so": "libcublas.so.13", "libcublasLt.so": "libcublasLt.so.13"}


def test_sources_of_an_earlier_call_stay(tmp_path: Path) -> None:
    bundle, place = made_bundle(tmp_path / "bundle"), tmp_path / "compiled-90"
    content = tmp_path / "ggml_python-1"
    content.mkdir()
    (content / "PKG-INFO").write_text("ggml")
    with tarfile.open(bundle.folder / "ggml_python-1.tar.gz", "w:gz") as archive:
        archive.add(content, content.name)
    file = check._unpack_ggml(bundle, place) / "PKG-INFO"
    assert file.read_text() == "ggml"
    file.write_text("kept")
    assert (check._unpack_ggml(bundle, place) / "PKG-INFO").read_text() == "kept"


SCRIPT = """\
import os, sys, time
from tools.gpu_bundle.report import print_begin, print_row
for part in ("one", "two", "three"):
    if part not in sys.argv:
        print_begin(part)
        if part == "two":
            print("ggml aborts", file=sys.stderr, flush=True)
            {fault}
        print_row(part, "done")
"""


@pytest.mark.parametrize(
    ("fault", "words"),
    [("os.abort()", "SIGABRT: ggml aborts"), ("sys.exit(3)", "exit code 3: ggml aborts")],
)
def test_a_part_that_ends_the_process_costs_no_other_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, words: str
) -> None:
    monkeypatch.setattr(check, "_STEPS", "steps_of_a_test")
    bundle, report = made_bundle(tmp_path / "bundle"), Report(tmp_path)
    package = bundle.site / "steps_of_a_test"
    package.mkdir(parents=True)
    (package / "step.py").write_text(SCRIPT.format(fault=fault))
    monkeypatch.setenv("PYTHONPATH", "")
    (bundle.folder / "source").symlink_to(Path(check.__file__).parents[2])
    run_step(Step("step", "step", (), 60, "cpu"), bundle, report, 60)
    rows = {row.what: row for row in report.steps["step"]}
    assert [rows[name].value for name in ("one", "three")] == ["done", "done"]
    assert words in rows["two"].value
    assert report.failures == 1


def test_a_step_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_STEPS", "steps_of_a_test")
    bundle, report = made_bundle(tmp_path / "bundle"), Report(tmp_path)
    package = bundle.site / "steps_of_a_test"
    package.mkdir(parents=True)
    (package / "step.py").write_text("import threading\nthreading.Event().wait()")
    (bundle.folder / "source").symlink_to(Path(check.__file__).parents[2])
    run_step(Step("step", "step", (), 1, "cpu"), bundle, report, 1)
    assert "did not end within 1 s" in report.steps["step"][0].value


def test_coarse_weights_are_powers_of_two() -> None:
    found = coarse(np.array([0.0, 1.0, -1.2, 1.6, 5.9, 0.3], np.float32))
    assert found.tolist() == [0.0, 1.0, -1.0, 2.0, 4.0, 0.25]
    assert coarse(np.array([7], np.int64)).tolist() == [7]
