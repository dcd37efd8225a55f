"""A server over hours, in runs that add up: `python -m benchmarks.soak --state FILE`.

Each part has `tampu serve`s of its own with the built-in model. What is done is written to the
file after each slice; the next run with the same file continues, until what is wanted is done.

- mixed: all that clients ask, of every kind, in all three APIs, cancelled and wrong requests too
  (`benchmarks.mixed`), of the model and of one with an adapter. Once a minute all of them pause,
  only one model stays, and memory, files, threads and processes of the server and of all below it
  are counted: when nobody asks, they should be the same each time. A line is fitted through memory
  after the warm-up, in which the clients do not pause, so that the caches are full. In hours.
- hostile: requests with fields of any type and size (`benchmarks.abuse`).
- deaths, leavers, ends, orphans: killed models' processes, clients that disconnect, servers that
  are stopped and killed beside streams (`benchmarks.faults`).
- slow: seconds of clients that send and read very slowly (`benchmarks.overload`).

`--report` only shows the totals. Ends with an error if anything in the file is not as it should be.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks import abuse, faults, overload
from benchmarks.abuse import status_of
from benchmarks.adapters import create_adapted
from benchmarks.mixed import COMES_AND_GOES, STAYS, Load
from benchmarks.server import request, server
from benchmarks.totals import Outcome, Sample, Totals, slope
from tampu.store.catalog import resolve

WANTED = {
    "mixed": 8.0,
    "hostile": 1_000_000.0,
    "deaths": 1_000.0,
    "leavers": 1_000.0,
    "ends": 200.0,
    "orphans": 200.0,
    "slow": 600.0,
}
SLICES = {"hostile": 5_000, "deaths": 50, "leavers": 50, "ends": 5, "orphans": 5, "slow": 600}
GROWTH_BYTES = 1e6  # of any of them in an hour
WARM_UP = 10.0  # minutes
_SETTLE_S = 3.0
_LONG_ENOUGH = 1.0  # hours, for growth to be judged
_FAULTS = {"deaths": "kills", "leavers": "leave", "ends": "ends", "orphans": "orphans"}


def take(process: psutil.Process, began_s: float) -> Sample:
    """Return what the server and its child processes hold now."""
    below = process.children(recursive=True)
    taken = [one.memory_info().rss for one in below]
    return Sample(
        (time.monotonic() - began_s) / 60,
        process.memory_info().rss,
        max(taken),
        sum(taken),
        process.num_fds(),
        process.num_threads(),
        sum(one.num_fds() for one in below),
        sum(one.num_threads() for one in below),
        len(below),
    )


async def quiet(process: psutil.Process, port: int) -> None:
    """Bring the server to a comparable state, and wait until it is idle."""
    await status_of(port, request("POST", "/api/generate", {"model": STAYS, "keep_alive": -1}))
    gone = {"model": COMES_AND_GOES, "keep_alive": 0}
    await status_of(port, request("POST", "/api/generate", gone))
    await asyncio.sleep(_SETTLE_S)
    if not process.is_running():
        raise SystemExit("the server has ended")


async def soak(
    process: psutil.Process, port: int, totals: Totals, end_s: float, arguments: argparse.Namespace
) -> None:
    """Load a server until a time; each sample is kept, so that nothing of a run is lost."""
    seed = arguments.seed + len(totals.part("mixed").soaks)
    load = Load(port, arguments.clients, seed)
    began_s = last_s = time.monotonic()
    samples: list[Sample] = []
    while time.monotonic() < end_s:
        is_warming = time.monotonic() - began_s < WARM_UP * 60
        await load.run(arguments.each, 0 if is_warming else arguments.pause)
        await quiet(process, port)
        samples.append(take(process, began_s))
        print(samples[-1].line(), flush=True)
        hours, last_s = (time.monotonic() - last_s) / 3600, time.monotonic()
        outcome = Outcome(hours, dict(load.found), hours=hours)
        load.found.clear()
        if failed := [status for status in outcome.counts if status.isdigit() and status >= "500"]:
            outcome.wrong.append(f"answers with status {', '.join(failed)}")
        totals.add("mixed", outcome)
        totals.keep_samples("mixed", samples)


def mixed(totals: Totals, arguments: argparse.Namespace) -> None:
    """Run the part "mixed" with a server of its own."""
    minutes = min(arguments.minutes, 60 * totals.left("mixed", WANTED["mixed"]))
    variables = {"TAMPU_NUM_PARALLEL": "4", "TAMPU_THREADS": "1", "TAMPU_CONTEXT_LENGTH": "1024"}
    with tempfile.TemporaryDirectory() as models:
        create_adapted(COMES_AND_GOES, resolve(STAYS), Path(models))
        with server(STAYS, TAMPU_MODELS=models, **variables) as (process, port):
            end_s = time.monotonic() + minutes * 60
            asyncio.run(soak(process, port, totals, end_s, arguments))


def counted(part: str, totals: Totals, end_s: float, arguments: argparse.Namespace) -> None:
    """Run slices of another part until it is done, or until a time."""
    while (left := totals.left(part, WANTED[part])) > 0 and time.monotonic() < end_s:
        count, began_s = int(min(left, arguments.slice or SLICES[part])), time.monotonic()
        minutes = (end_s - began_s) / 60
        outcome = _slice(part, count, minutes, arguments.seed + int(totals.part(part).done))
        outcome.hours = (time.monotonic() - began_s) / 3600
        totals.add(part, outcome)
        print(f"{part}: {outcome.line()}", flush=True)


def _slice(part: str, count: int, minutes: float, seed: int) -> Outcome:
    if part in _FAULTS:
        return faults.run(_FAULTS[part], count)
    if part == "slow":
        wanted = argparse.Namespace(only=["slow"], slots=16, models=1, slow=2_000, seconds=count)
        return overload.run(wanted)[0]
    wanted = argparse.Namespace(requests=count, clients=16, minutes=minutes, seed=seed)
    return abuse.run(wanted)


def faults_of(totals: Totals) -> list[str]:
    """Return what is not as it should be in all runs."""
    found = [f"{part}: {wrong}" for part, one in totals.parts.items() for wrong in one.wrong]
    for samples in totals.steady("mixed", WARM_UP):
        hours = (samples[-1].minutes - samples[0].minutes) / 60
        for name in ("server_bytes", "model_bytes"):  # sandboxes come and go in the sum of all
            rate = slope(samples, name)
            if hours >= _LONG_ENOUGH and rate > GROWTH_BYTES:
                grew = f"{name} grew by {rate / 1e6:.1f} MB/h in {hours:.1f} hours"
                found.append(f"mixed: {grew}")
        pairs = zip(samples[0].counts(), samples[-1].counts(), strict=True)
        if any(after > before for before, after in pairs):
            found.append("mixed: files, threads or processes became more")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--state", type=Path, default=Path("soak.json"), help="counts of all runs")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[*WANTED])
    parser.add_argument("--minutes", type=float, default=115, help="of this run, for each part")
    parser.add_argument("--slice", type=int, default=0, help="how many at a time; 0: as usual")
    parser.add_argument("--each", type=float, default=57, help="seconds between samples")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.3, help="a client's mean pause, seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", action="store_true", help="only show the totals")
    arguments = parser.parse_args()
    totals = Totals(arguments.state)
    for part in () if arguments.report else arguments.only:
        if part == "mixed":
            mixed(totals, arguments)
        else:
            counted(part, totals, time.monotonic() + arguments.minutes * 60, arguments)
    print(totals.report(WANTED, WARM_UP))
    wrong = faults_of(totals)
    print(*wrong, sep="\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
