"""What watching the engine costs: `python -m benchmarks.watching [--model demo] [--slots 8]`.

Requests run on a model, and its run loop is asked four times a second what it does, as the server
asks while one client reads `GET /api/live`. Printed is the CPU time of recording and of snapshots,
measured on the threads that take them, as a share of the time of the loop's steps.

Ends with an error if it is more than 0.5 %.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from dataclasses import dataclass

import msgspec

from tampu import Engine
from tampu.runner.events import Done, Event
from tampu.runner.generate_options import GenerateOptions

MAX_SHARE = 0.005
FRAME_S = 0.25
CONTEXT = 2048
PROMPT = "What is 27 + 58? " * 20


@dataclass
class Cost:
    """What was measured, in milliseconds.

    Attributes:
        recording_ms: CPU time on the loop's thread.
        encoding_ms: CPU time of encoding the snapshots, on another thread.
        steps_ms: time of the loop's steps.
        steps: how many there were.
    """

    recording_ms: float = 0.0
    encoding_ms: float = 0.0
    steps_ms: float = 0.0
    steps: int = 0


def keep_busy(engine: Engine, number: int, ended: threading.Event) -> None:
    """Ask the model again and again."""
    prompt = engine.tokenizer.encode(f"{PROMPT}{number}")
    options = GenerateOptions(max_tokens=CONTEXT // 2, ignore_eos=True, temperature=1.0)
    while not ended.is_set():
        done = threading.Event()

        def sink(event: Event, done: threading.Event = done) -> None:
            if isinstance(event, Done):
                done.set()

        handle = engine.submit(prompt, options, sink)
        while not done.wait(0.1):
            if ended.is_set():
                handle.cancel()


def measure(engine: Engine, seconds: float) -> Cost:
    """Look at a busy model, four times a second."""
    cost, encoder, stats = Cost(), msgspec.msgpack.Encoder(), engine.runner.stats
    engine.runner.observe()
    total_ns, steps = stats.total_ns, stats.steps
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        time.sleep(FRAME_S)
        found = engine.runner.observe()
        began_ns = time.thread_time_ns()
        encoder.encode(found)
        cost.encoding_ms += (time.thread_time_ns() - began_ns) / 1e6
        cost.recording_ms += found.recording_ms
    cost.steps_ms, cost.steps = (stats.total_ns - total_ns) / 1e6, stats.steps - steps
    return cost


def main() -> None:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    ended = threading.Event()
    with Engine.load(given.model, context=CONTEXT, slots=given.slots) as engine:
        busy = [
            threading.Thread(target=keep_busy, args=(engine, number, ended))
            for number in range(given.slots)
        ]
        for thread in busy:
            thread.start()
        cost = measure(engine, given.seconds)
        ended.set()
        for thread in busy:
            thread.join()
    took_ms = cost.recording_ms + cost.encoding_ms
    share = took_ms / cost.steps_ms
    print(
        f"{cost.steps} steps of {cost.steps_ms / cost.steps:.2f} ms with {given.slots} requests; "
        f"of each {1000 * cost.recording_ms / cost.steps:.1f} us for recording, and "
        f"{1000 * cost.encoding_ms / cost.steps:.1f} us for encoding"
    )
    print(f"one watcher takes {share:.3%} of a step (at most {MAX_SHARE:.1%})")
    sys.exit(share > MAX_SHARE)


if __name__ == "__main__":
    main()
