"""The soak: what is done adds up over runs, and each kind of request is answered."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.adapters import create_adapted
from benchmarks.mixed import COMES_AND_GOES, STAYS, USUAL
from benchmarks.soak import SLICES, WANTED, faults_of
from benchmarks.totals import Outcome, Sample, Totals, slope
from tampu.engine.engine import Engine
from tampu.settings.settings import Settings
from tampu.store.catalog import prepare, resolve


def sample(minutes: float, megabytes: float, files: int = 9) -> Sample:
    return Sample(
        minutes, 80_000_000, int(megabytes * 1e6), int(megabytes * 1e6), files, 3, 4, 5, 2
    )


def grown(rate: float, minutes: int = 120) -> list[Sample]:
    """Return the samples of a process that grows at so many MB an hour."""
    return [sample(minute, 100 + rate * minute / 60) for minute in range(minutes + 1)]


def run(state: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", "--state", str(state), *options],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_counts_of_several_runs_add_up(tmp_path: Path) -> None:
    state = tmp_path / "soak.json"
    Totals(state).add("deaths", Outcome(50, {"told": 40}, {"told, s": 0.2}, hours=0.5))
    Totals(state).add("deaths", Outcome(30, {"told": 20, "answered": 9}, {"told, s": 0.1}))
    found = Totals(state).part("deaths")
    assert (found.done, found.hours, found.worst) == (80, 0.5, {"told, s": 0.2})
    assert found.counts == {"told": 60, "answered": 9}
    assert Totals(state).left("deaths", 1000) == 920
    assert Totals(state).left("deaths", 60) == 0
    assert Totals(state).left("ends", 200) == 200


def test_a_soak_that_is_interrupted_keeps_its_samples(tmp_path: Path) -> None:
    state, samples = tmp_path / "soak.json", grown(1.0)
    for stop in (1, 2, 3):
        totals = Totals(state)
        totals.add("mixed", Outcome(1 / 60))
        totals.keep_samples("mixed", samples[:stop])
    other = [sample(0.5, 90)]
    totals = Totals(state)
    totals.keep_samples("mixed", other)
    assert Totals(state).part("mixed").soaks == [samples[:3], other]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "soak.json"
    state.write_text("[1]")
    with pytest.raises(SystemExit, match="has no counts of earlier runs"):
        Totals(state)


def test_growth_is_the_slope_after_the_warm_up(tmp_path: Path) -> None:
    totals = Totals(tmp_path / "soak.json")
    totals.add("mixed", Outcome(2))
    totals.keep_samples("mixed", [sample(0, 50), *grown(3.0)[1:]])
    [steady] = totals.steady("mixed", warm_up=10)
    assert steady[0].minutes == 11
    assert slope(steady, "model_bytes") / 1e6 == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("samples", "complaints"),
    [
        (grown(0.9), []),
        (grown(1.1), ["mixed: model_bytes grew by 1.1 MB/h in 1.8 hours"]),
        (grown(20, minutes=30), []),  # too short to be judged
        (
            [sample(11, 100), sample(12, 100, files=10)],
            ["mixed: files, threads or processes became more"],
        ),
    ],
)
def test_growth_of_memory_or_files_is_an_error(
    samples: Sequence[Sample], complaints: Sequence[str], tmp_path: Path
) -> None:
    totals = Totals(tmp_path / "soak.json")
    totals.add("mixed", Outcome(2))
    totals.keep_samples("mixed", samples)
    assert faults_of(totals) == list(complaints)


def test_the_report_says_what_was_reached_of_what_is_wanted(tmp_path: Path) -> None:
    totals = Totals(tmp_path / "soak.json")
    totals.add("hostile", Outcome(27_392, {"200": 27_000}, hours=0.37, wrong=["1 answer"]))
    report = totals.report(WANTED, 10)
    assert (
        "hostile: 27,392 of 1,000,000, in 0.37 hours\n  {'200': 27000}\n  WRONG: 1 answer" in report
    )
    assert "deaths: 0 of 1,000" in report


def test_every_part_has_a_slice_but_the_one_that_is_sampled() -> None:
    assert WANTED.keys() == {"mixed", *SLICES}


def test_requests_of_one_kind_are_new_each_time() -> None:
    chance = random.Random(1)
    for kind in ("tools", "format", "grammar", "regex", "image", "forced call"):
        assert len({USUAL[kind](chance) for _ in range(20)}) == 20


def test_the_model_that_comes_and_goes_has_an_adapter(tmp_path: Path) -> None:
    create_adapted(COMES_AND_GOES, resolve(STAYS), tmp_path)
    settings = Settings.from_environment({"TAMPU_MODELS": str(tmp_path), "HOME": str(tmp_path)})
    answers = []
    for name in (STAYS, COMES_AND_GOES):
        found = prepare(name, settings=settings)
        with Engine.load(found.path, adapters=found.adapters, threads=1, context=64) as engine:
            answers.append(engine.logits([1, 2, 3]))
    assert len(found.adapters) == 1
    assert 0 < abs(answers[1] - answers[0]).max() < abs(answers[0]).max()


@pytest.mark.server
@pytest.mark.slow
def test_two_runs_of_the_command_add_up(tmp_path: Path) -> None:
    state = tmp_path / "soak.json"
    for done in (1, 2):
        ended = run(state, "--only", "orphans", "--slice", "1", "--minutes", "0.001")
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert f"orphans: {done} of 200" in ended.stdout
    ended = run(state, "--only", "mixed", "--minutes", "0.001", "--each", "1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    [samples] = Totals(state).part("mixed").soaks
    assert len(samples) == 1
    assert "orphans: 2 of 200" in run(state, "--report").stdout
