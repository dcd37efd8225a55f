"""The check of a GPU: its report, what it says of cards that it cannot check, and its steps."""

from __future__ import annotations

import json
import platform
import sys
import tarfile
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tampu.bench.bench import Work
from tools.gpu_bundle import check
from tools.gpu_bundle.build import EXPECTED, NAMES, _kept
from tools.gpu_bundle.card import Card, can_run, choose_card, find_cards, parse_card, problem_of
from tools.gpu_bundle.check import MODELS, PACKAGES, TAMPU, Bundle, Step, first_gpu, run_step
from tools.gpu_bundle.references import PERIOD, coarse
from tools.gpu_bundle.report import Report, Row, print_begin, print_row, read_line
from tools.gpu_bundle.steps.speed import Cost, describe_trace
from tools.wheel.compile_cuda import CompileError, _link_libraries, compile_cuda

HOPPER = Card("NVIDIA H100 80GB HBM3", "580.159.04", 90, 81559, 80990, "GPU-1a2b")
HOPPER_LINE = "NVIDIA H100 80GB HBM3, 580.159.04, 9.0, 81559, 80990, GPU-1a2b"
SHARED = Card("NVIDIA GB10", "580.95.05", 121, None, None, "GPU-3c4d")
SHARED_LINE = "NVIDIA GB10, 580.95.05, 12.1, [N/A], [N/A], GPU-3c4d"
FULL = Card("NVIDIA L4", "580.1", 89, 23034, 100, "GPU-5e6f")


@pytest.mark.parametrize(
    ("line", "card"),
    [
        (HOPPER_LINE, HOPPER),
        (SHARED_LINE, SHARED),
        (SHARED_LINE.replace("[N/A]", "[Not Supported]"), SHARED),
        (
            "Tesla, T4, 580.1, 7.5, 15360, 1, GPU-7",
            Card("Tesla, T4", "580.1", 75, 15360, 1, "GPU-7"),
        ),
    ],
)
def test_nvidia_smis_line_is_read(line: str, card: Card) -> None:
    assert parse_card(line) == card


@pytest.mark.parametrize(
    "line", ["Failed to initialize NVML: Driver/library", HOPPER_LINE.replace("9.0", "[N/A]")]
)
def test_a_line_that_is_not_nvidia_smis_is_shown(line: str) -> None:
    assert parse_card(line) == f"nvidia-smi prints what cannot be read: {line!r}"


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        (None, HOPPER),
        ("0", FULL),
        ("2", SHARED),
        ("2,1", SHARED),
        ("0,1", HOPPER),
        ("GPU-1a", HOPPER),
        (" 1 , 0", HOPPER),
        ("2,7,1", SHARED),
        ("MIG-8", Card(FULL.name, FULL.driver, 89, None, None, "MIG-8")),
    ],
)
def test_the_first_visible_card_that_can_be_checked_is_chosen(
    visible: str | None, chosen: Card
) -> None:
    assert choose_card([FULL, HOPPER, SHARED], visible) == chosen


@pytest.mark.parametrize("visible", ["-1", "", "7", "GPU-9"])
def test_a_variable_that_hides_all_cards_says_which_there_are(visible: str) -> None:
    said = str(choose_card([FULL, HOPPER], visible))
    assert said == (
        f"CUDA_VISIBLE_DEVICES={visible} names no card: unset it, or name one of "
        "0: NVIDIA L4, 1: NVIDIA H100 80GB HBM3"
    )


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_all_cards_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, f"echo '{HOPPER_LINE}'; echo; echo '{SHARED_LINE}'")
    assert find_cards() == (HOPPER, SHARED)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'No devices were found'; exit 6", "found no card: No devices were found"),
        ("printf 'It has failed.\\n\\nIs it running?\\n'; exit 9", "has failed. Is it running?"),
        ("exit 0", "found no card: it printed nothing"),
        ("echo '\"compute_cap\" is not a valid field'; exit 2", "install version 580 or newer"),
        ("echo 'Failed to initialize NVML'", "cannot be read"),
    ],
)
def test_a_driver_that_does_not_answer_gets_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    smi(tmp_path, monkeypatch, script)
    said = find_cards()
    assert isinstance(said, str)
    assert words in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("card", "words"),
    [
        (HOPPER, ""),
        (SHARED, ""),
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
        (90, [90], True), (89, [80, 86], True), (86, [89], False), (100, [90], False),
        (103, [100], True), (120, [90, 120], True), (121, [120], False), (90, [], False),
    ],
)  # fmt: skip
def test_code_runs_on_later_cards_of_its_generation(
    architecture: int, compiled: list[int], runs: bool
) -> None:
    assert can_run(Card("A", "580", architecture, 1, 1), compiled) is runs


def test_without_a_driver_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert find_cards() == "no NVIDIA driver: nvidia-smi is not on the PATH"


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


def test_the_report_begins_with_what_failed(tmp_path: Path) -> None:
    report = Report(tmp_path)
    report.abouts["speed"] = "Tokens per second."
    report.add("speed", Row("tg128", "2 tokens/s\n\n  of one"))
    report.add("logits", Row("llama", "error 1", passed=False))
    report.add("logits", Row("qwen3", "error 0", passed=True))
    lines = (tmp_path / "report.md").read_text().splitlines()
    assert lines[2] == "1 of 2 checks passed, 1 failed."
    assert "* FAILED: logits: llama: error 1" in lines[:7]
    assert lines[lines.index("## speed") + 2] == "Tokens per second."
    assert "| tg128 | 2 tokens/s<br>of one |  |" in lines


def test_what_is_kept_is_made_again_where_its_inputs_change(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(place: Path) -> None:
        made.append(place)
        place.touch()

    first = _kept(tmp_path, "models", [b"a", b"b"], make)
    assert _kept(tmp_path, "models", [b"a", b"b"], make) == first
    assert len(made) == 1
    other = _kept(tmp_path, "models", [b"a", b"c"], make)
    assert [*tmp_path.iterdir()] == [other] != [first]


def test_gpus_with_memory_of_their_own_come_first() -> None:
    kinds = ["CPU", "integrated GPU", "GPU", "GPU"]
    devices = [{"kind": kind, "problem": ""} for kind in kinds]
    assert first_gpu(devices) == ["2"]
    devices[2]["problem"] = devices[3]["problem"] = "too old"
    assert first_gpu(devices) == ["1"]
    assert first_gpu(devices[:1]) == []


def test_a_trace_gives_the_devices_idle_time_and_its_copies() -> None:
    events: list[dict[str, Any]] = [
        {"cat": "cpu_op", "ts": 0, "dur": 1000},
        {"cat": "kernel", "ts": 100_000, "dur": 50_000},
        {"cat": "kernel", "ts": 120_000, "dur": 40_000},  # at the same time
        {"cat": "gpu_memcpy", "ts": 190_000, "dur": 10_000, "args": {"bytes": 4096}},
        {"ph": "M"},
    ]
    assert describe_trace(events, 2) == (
        "idle for 30.0 % of 100 ms; for each generated token 1 kernels, "
        "0.5 copies of 2.0 KiB together"
    )
    assert describe_trace(events[:1], 2) == "not measured: CUPTI saw no kernels of ggml's"


def test_a_speed_stands_as_a_share_of_the_cards_limit(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "qwen3moe")
    for name in ("token_embd", "output", "blk.0.ffn_up", "blk.0.ffn_up_exps"):
        writer.add_tensor(f"{name}.weight", np.ones((8, 32), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    limits = {"bytes_per_s": 1e9, "flops": 1e12}
    cost = Cost.of(tmp_path / "model.gguf", 1 / 8, limits)
    assert cost == Cost(2 * (256 + 256 + 32), 256 + 32, limits)
    speed = 1e9 / cost.bytes
    assert cost.describe(Work("tg", 8), speed).endswith(
        "weights read at 100 % of the memory's speed"
    )
    speed = 1e12 / cost.weights / 4
    assert cost.describe(Work("pp", 8), speed).endswith("50 % of the BF16 products' speed")
    assert Cost(1, 1, {}).describe(Work("pp", 8), 2) == "2.0 tokens/s"


def made_bundle(folder: Path, **about: object) -> Bundle:
    here = ".".join(map(str, sys.version_info[:2]))
    known = {
        "python": here,
        "machine": platform.machine(),
        "architectures": [],
        "expected": [],
    } | about
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bundle.json").write_text(json.dumps(known))
    for name in (PACKAGES, TAMPU, MODELS):
        with tarfile.open(folder / name, "w:xz"):
            pass
    return Bundle(folder, folder / "work")


def test_the_bundle_has_every_package_that_tampu_requires() -> None:
    of_the_target = {"numpy", "jinja2", "tokenizers", "pillow", "pyyaml", "tqdm"}
    assert len(of_the_target) == len(EXPECTED)
    found, names = set[str](), ["tampu"]
    while names:
        for requirement in map(Requirement, requires(names.pop()) or ()):
            name = canonicalize_name(requirement.name)
            is_used = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if is_used and name not in found | of_the_target:
                found.add(name)
                names.append(name)
    # ggml is in tampu's wheel, and the programs that write models need gguf.
    assert found - {"ggml-python"} | {"gguf"} == {canonicalize_name(name) for name in NAMES}


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
    with pytest.raises(CompileError, match=r"this card needs sm_90.*CUDA_ARCHITECTURES=90"):
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
    [("os.abort()", "SIGABRT\nggml aborts"), ("sys.exit(3)", "exit code 3\nggml aborts")],
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


def test_a_checkout_in_the_working_directory_is_not_what_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "_STEPS", "steps_of_a_test")
    bundle, report = made_bundle(tmp_path / "bundle"), Report(tmp_path)
    (bundle.folder / "source").symlink_to(Path(check.__file__).parents[2])
    for folder, value in ((bundle.site, "of the bundle"), (tmp_path, "of the checkout")):
        package = folder / "steps_of_a_test"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        lines = ["from tools.gpu_bundle.report import print_row", f"print_row('it', {value!r})"]
        (package / "step.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    run_step(Step("step", "step", (), 60, "cpu"), bundle, report, 60)
    assert [row.value for row in report.steps["step"]] == ["of the bundle"]


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
    assert coarse(np.array(0.3, np.float32)).shape == ()


def test_coarse_weights_begin_again() -> None:
    found = coarse(np.linspace(1, 100, 4 * PERIOD, dtype=np.float32).reshape(4, PERIOD))
    assert (found == found[0]).all()
