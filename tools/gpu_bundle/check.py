"""Runs the check on the machine with the GPU: `check.sh` calls it.

Every step is a process of its own with a limit in time, and the report is written after each row:
a crash, a hang or an interruption loses no more than one step. This file uses the standard
library alone: the bundle's packages are unpacked to a folder first, and nothing is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.gpu_bundle.card import VISIBLE, Card, can_run, choose_card, find_cards, problem_of
from tools.gpu_bundle.report import Report, Row, read_line
from tools.wheel.compile_cuda import LIBRARY, CompileError, compile_cuda

VISIBLE_VULKAN = "GGML_VK_VISIBLE_DEVICES"
SPEED_MODELS = ("Llama 3.2 1B", "Qwen3 8B", "Qwen3 30B-A3B", "Qwen3.5 4B")
HIDE = {"cuda": {VISIBLE: "-1"}, "vulkan": {VISIBLE_VULKAN: ""}}
"""With which variable ggml does not see a backend's devices."""
PACKAGES, TAMPU, MODELS = "packages.tar.xz", "tampu.tar.xz", "models.tar.xz"
CUDA_ARCHIVE = f"{LIBRARY}.xz"
MINUTES = 8.0  # that the limits of the steps are for
COMPILE_MINUTES = 5.0
RESTARTS = 8  # of a step whose parts end its process
_LEAST_S = 0.1  # a step that has less is not begun
_STEPS = "tools.gpu_bundle.steps"
_TITLES = {"cuda": "CUDA", "vulkan": "Vulkan", "cpu": "CPU"}
_ABOUT = {
    "limits": "What PyTorch reaches on this card. Speeds below are given as shares of it.",
    "devices": "What tampu's commands print here.",
    "parity": (
        "Models with random weights in F32, one for each architecture: the relative error of the "
        "logits of 48 tokens against those of transformers on a CPU, computed in one step and "
        "token by token."
    ),
    "speed": (
        "Random weights in this model's shape. `ppN` is a prompt of N tokens, `tgN` N generated "
        "tokens, each after so many other tokens (depth). Then several requests at once, each "
        "with a prompt of its own: generated tokens per second of all together, with the time "
        "of the prompts in it, and the median time to the first token."
    ),
    "suite": "The project's own tests that need one GPU, which compare it with the CPU.",
    "faults": "What happens when a model's process ends and when memory is short.",
}


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the check.

    Attributes:
        name: its heading in the report.
        module: of `steps`.
        arguments: for the module.
        seconds: the most it may take.
        backend: the only one whose devices it sees: `cuda`, `vulkan` or `cpu`.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    seconds: float
    backend: str


@dataclass(frozen=True)
class Bundle:
    """The unpacked bundle, and where its packages were unpacked to."""

    folder: Path
    work: Path

    @property
    def site(self) -> Path:
        """The packages."""
        return self.work / "site"

    @property
    def models(self) -> Path:
        """The models whose logits are compared."""
        return self.work / "models"

    @property
    def backends(self) -> Path:
        """Where tampu loads ggml's backends from."""
        return self.site / "tampu" / "ml" / "bundled" / "lib" / "backends"

    def unpack(self) -> str:
        """Unpack the packages; return what is wrong with the bundle or this Python."""
        about = json.loads((self.folder / "bundle.json").read_text())
        here = ".".join(map(str, sys.version_info[:2]))
        if here != about["python"]:
            return (
                f"the bundle is for Python {about['python']}, this is {here}: set PYTHON, or make "
                f"the bundle again with `make gpu-bundle BUNDLE_PYTHON={here}`"
            )
        if (sys.platform, platform.machine()) != ("linux", about["machine"]):
            return f"the bundle is for Linux on {about['machine']}, this is {platform.platform()}"
        if missing := [name for name in about["expected"] if find_spec(name) is None]:
            return f"this Python has no {', '.join(missing)}: install them, or set PYTHON"
        for name, place in ((PACKAGES, self.site), (TAMPU, self.site), (MODELS, self.models)):
            with tarfile.open(self.folder / name) as archive:
                if hasattr(tarfile, "data_filter"):
                    archive.extractall(place, filter="data")
                else:  # Python before 3.11.4
                    archive.extractall(place)
        base = self.backends.parent
        (base / "libggml-base.so").symlink_to("libtampu-ggml-base.so")  # its name where compiled
        return ""


def facts(report: Report, cards: Sequence[Card] | str) -> None:
    """Write what machine this is."""
    cpu = next(
        (line.partition(":")[2] for line in _lines("/proc/cpuinfo") if "model name" in line), "?"
    )
    rows = {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "NVIDIA cards": cards if isinstance(cards, str) else "; ".join(map(str, cards)),
        "CPU": f"{cpu.strip()}, {len(os.sched_getaffinity(0))} cores",
        "system": f"{platform.platform()}, Python {platform.python_version()}",
    }  # fmt: skip
    for what, value in rows.items():
        report.add("machine", Row(what, value))


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []


def cuda_library(bundle: Bundle, card: Card) -> tuple[Path, str]:
    """Return a library with code for the card, and where it comes from.

    Raises:
        CompileError: if the bundle has none and it cannot be compiled here.
    """
    about = json.loads((bundle.folder / "bundle.json").read_text())
    given = bundle.folder / CUDA_ARCHIVE
    if given.is_file() and can_run(card, about["architectures"]):
        library = bundle.work / LIBRARY
        with lzma.open(given) as packed, library.open("wb") as file:
            shutil.copyfileobj(packed, file)
        return library, f"of the bundle, for {_listed(about['architectures'])}"
    toolkit = _toolkit()
    if toolkit is None:
        has = (
            f"CUDA code for {_listed(about['architectures'])}"
            if given.is_file()
            else "no CUDA code"
        )
        raise CompileError(
            f"the bundle has {has}, this card needs sm_{card.architecture}, and there is no nvcc "
            "here: install the CUDA toolkit, or make the bundle with "
            f"`make cuda-backend gpu-bundle CUDA_ARCHITECTURES={card.architecture}`"
        )
    began = time.monotonic()
    # Beside the bundle, so that another call goes on where this one was stopped.
    place = bundle.folder / f"compiled-{card.architecture}"
    made = compile_cuda(
        _unpack_ggml(bundle, place), place / "build", toolkit, [str(card.architecture)],
        COMPILE_MINUTES, nvidia_packages(),
    )  # fmt: skip
    return made, f"compiled here in {time.monotonic() - began:.0f} s with {toolkit}/bin/nvcc"


def _listed(architectures: Sequence[int]) -> str:
    return ", ".join(f"sm_{each}" for each in architectures)


def _unpack_ggml(bundle: Bundle, place: Path) -> Path:
    """Unpack ggml's sources, unless an earlier call has."""
    sources = place / "ggml-python"
    if not sources.is_dir():
        partial = place / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        (archive,) = bundle.folder.glob("ggml_python-*.tar.gz")
        subprocess.run(["tar", "-xzf", archive, "-C", partial, "--strip-components=1"], check=True)
        partial.rename(sources)
    return sources


def _toolkit() -> Path | None:
    """Return the folder of the CUDA toolkit.

    nvcc itself says where it is, since the one on the PATH may be a script that calls another.
    """
    found = shutil.which("nvcc") or next(iter(Path("/usr/local").glob("cuda*/bin/nvcc")), None)
    if found is None:
        return None
    command = [str(found), "--dryrun", "-x", "cu", "/dev/null"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        for line in (done.stdout + done.stderr).splitlines():
            if line.startswith("#$ TOP="):
                return Path(line.partition("=")[2].strip()).resolve()
    return Path(found).resolve().parents[1]


def nvidia_packages() -> list[Path]:
    """Return where NVIDIA's packages of PyPI are: they come with PyTorch."""
    folders = [folder for folder in sys.path if folder.endswith("-packages")]
    return [path for each in folders for path in sorted(Path(each).glob("nvidia/cu13"))]


def library_path() -> str:
    """Return where CUDA's libraries are: PyTorch's packages, and the toolkit's."""
    toolkit = _toolkit()
    found = [each / "lib" for each in nvidia_packages()]
    found += [toolkit / "lib64", toolkit / "lib"] if toolkit else []
    given = os.environ.get("LD_LIBRARY_PATH")
    return ":".join([*map(str, found), *([given] if given else [])])


def environment(bundle: Bundle, backend: str) -> dict[str, str]:
    """Return the variables of a step that sees the devices of one backend."""
    hidden: dict[str, str] = {}
    for name, variables in HIDE.items():
        hidden |= {} if name == backend else variables
    source = bundle.folder / "source"
    paths = [str(bundle.site), str(source), str(source / "tests")]
    own = {
        "PYTHONPATH": ":".join(paths),
        "LD_LIBRARY_PATH": library_path(),
        "HOME": str(bundle.work),  # no settings or files of this user
        "GGML_NO_BACKTRACE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONSAFEPATH": "1",  # a checkout in the working directory is not the package
        "PYTHONUNBUFFERED": "1",
    }
    return {**os.environ, **own, **hidden}


def run_step(step: Step, bundle: Bundle, report: Report, seconds: float) -> None:
    """Run a step; if a part ends its process, say so and go on with the next part."""
    ends, done = time.monotonic() + seconds, list[str]()
    for _ in range(RESTARTS):
        left = ends - time.monotonic()
        if left < _LEAST_S:
            report.add(step.name, Row("the rest", f"not run: {seconds:.0f} s were over"))
            return
        skip = ["--skip", *done] if done else []
        command = [sys.executable, "-m", f"{_STEPS}.{step.module}", *step.arguments, *skip]
        problem = _run(command, environment(bundle, step.backend), step, report, done, left)
        if not problem:
            return
        report.add(step.name, Row(done[-1] if done else "the step", problem, passed=False))
        if not done:
            return


def _run(
    command: Sequence[str], variables: Mapping[str, str], step: Step, report: Report,
    done: list[str], seconds: float,
) -> str:  # fmt: skip
    """Run a process of a step, add its rows, and return how it ended if not well."""
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        subprocess.Popen(
            command, env=dict(variables), stdout=subprocess.PIPE, stderr=errors, text=True,
            start_new_session=True,
        ) as process,
    ):  # fmt: skip
        timer = threading.Timer(seconds, _kill, [process])
        timer.start()
        for line in process.stdout or ():
            match read_line(line):
                case Row() as row:
                    report.add(step.name, row)
                case str(part):
                    done.append(part)
        code = process.wait()
        late = not timer.is_alive()
        timer.cancel()
        timer.join()
        _kill(process)
        errors.seek(0)
        said = [line for line in errors.read().splitlines() if line.strip()][-3:]
    if late:
        how = f"did not end within {seconds:.0f} s"
    elif code == 0:
        return ""
    elif code < 0:
        how = f"the process ended with {signal.Signals(-code).name}"
    else:
        how = f"the process ended with exit code {code}"
    return "\n".join([how, *said])


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def steps(bundle: Bundle, backends: Sequence[str], *, small: bool) -> Iterator[Step]:
    """Yield the steps in their order: what is worth most first."""
    size = ("--small",) if small else ()
    models, work = str(bundle.models), str(bundle.work)
    first, *others = ("a small model",) if small else SPEED_MODELS
    yield Step("Limits of the card", "limits", size, 60, "cuda")
    for name in backends:
        title = _TITLES[name]
        yield Step(f"{title}: devices", "devices", (name,), 60, name)
        yield Step(f"{title}: logits", "parity", (models, name, *size), 120, name)
        speed = f"{title}: speed of {first}"
        yield Step(speed, "speed", (work, name, first, *size), 120, name)
    for name in backends:
        title = _TITLES[name]
        yield Step(f"{title}: tests", "suite", (name, *size), 120, name)
        for model in others:
            speed = f"{title}: speed of {model}"
            yield Step(speed, "speed", (work, name, model, *size), 90, name)
        yield Step(f"{title}: faults", "faults", (work, name), 60, name)


def choose_cuda(report: Report, cards: Sequence[Card] | str) -> Card | None:
    """Let the steps see one card; return it, or say why none can be checked."""
    card = cards if isinstance(cards, str) else choose_card(cards, os.environ.get(VISIBLE))
    if isinstance(card, str):
        report.add("CUDA", Row("card", f"not checked: {card}"))
        return None
    if len(cards) > 1:
        os.environ[VISIBLE] = card.uuid
    if problem := problem_of(card):
        report.add("CUDA", Row("card", f"not checked: {problem}", passed=False))
        return None
    report.add("CUDA", Row("card", str(card)))
    return card


def choose_vulkan(bundle: Bundle) -> None:
    """Let the steps see one of Vulkan's devices: the user's first choice, or the first GPU."""
    chosen = os.environ.get(VISIBLE_VULKAN, "").replace(",", " ").split()
    if not chosen:
        command = [sys.executable, "-m", "tampu.cli.entry", "doctor", "--json"]
        variables = environment(bundle, "vulkan")
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, check=False, timeout=60
        )
        with contextlib.suppress(ValueError, KeyError):
            chosen = first_gpu(json.loads(done.stdout)["vulkan"])
    if chosen:
        os.environ[VISIBLE_VULKAN] = chosen[0]


def first_gpu(devices: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the index of the first of Vulkan's GPUs that can be used, those with memory first."""
    for kind in ("GPU", "integrated GPU", "virtual GPU"):
        for index, device in enumerate(devices):
            if device["kind"] == kind and not device["problem"]:
                return [str(index)]
    return []


def prepare_cuda(bundle: Bundle, report: Report, card: Card) -> bool:
    """Put CUDA's library where tampu loads it from; return whether there is one."""
    try:
        library, origin = cuda_library(bundle, card)
    except CompileError as error:
        report.add("CUDA", Row("library", f"not checked: {error}", passed=False))
        return False
    shutil.copy(library, bundle.backends)
    size = library.stat().st_size / 2**20
    report.add("CUDA", Row("library", f"{origin}, {size:.0f} MiB", passed=True))
    return True


def main() -> int:
    """Run the check; the exit code is 1 if something failed, 2 if the bundle cannot be used."""
    parser = argparse.ArgumentParser(description="Check tampu on this machine's GPU.")
    parser.add_argument("report", type=Path, nargs="?", default=Path("tampu-gpu-report"))
    parser.add_argument("--bundle", type=Path, required=True, help="The unpacked bundle.")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="Of the whole check.")
    parser.add_argument("--backends", default="cuda,vulkan", help="Of cuda, vulkan, cpu.")
    parser.add_argument("--only", default="", help="Steps with one of these words: logits,faults.")
    parser.add_argument("--small", action="store_true", help="Few and small models, as a test.")
    given = parser.parse_args()
    backends = given.backends.split(",")
    if unknown := [name for name in backends if name not in _TITLES]:
        parser.error(f"--backends {','.join(unknown)}: there are {', '.join(_TITLES)}")
    ends = time.monotonic() + 60 * given.minutes
    given.report.mkdir(parents=True, exist_ok=True)
    report = Report(given.report)
    with tempfile.TemporaryDirectory(prefix="tampu-gpu-", ignore_cleanup_errors=True) as work:
        bundle = Bundle(given.bundle.resolve(), Path(work))
        if problem := bundle.unpack():
            print(f"check: {problem}", file=sys.stderr)
            return 2
        cards = find_cards()
        facts(report, cards)
        if "cuda" in backends:
            card = choose_cuda(report, cards)
            if card is None or not prepare_cuda(bundle, report, card):
                backends.remove("cuda")
        if "vulkan" in backends:
            choose_vulkan(bundle)
        words = given.only.split(",")
        chosen = (
            step for step in steps(bundle, backends, small=given.small)
            if any(word in step.name for word in words)
        )  # fmt: skip
        for step in chosen:
            left = ends - time.monotonic()
            report.abouts[step.name] = _ABOUT[step.module]
            if left < _LEAST_S:
                over = f"not run: the {given.minutes:g} minutes were over"
                report.add(step.name, Row("the step", over))
                continue
            longest = step.seconds * given.minutes / MINUTES
            run_step(step, bundle, report, min(longest, left))
    print(f"check: {report.failures} failed; the report is {given.report / 'report.md'}")
    return int(report.failures > 0)


if __name__ == "__main__":
    sys.exit(main())
