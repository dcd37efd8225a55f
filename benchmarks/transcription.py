"""A minute of sound to text, beside llama.cpp: `python -m benchmarks.transcription`.

    python -m benchmarks.qwen3_asr OUT
    python -m benchmarks.transcription OUT --library DIR/libmtmd.so

tampu's engine and llama.cpp's library libmtmd, built for the machine, with the same two files. Each
has a process of its own; they take turns, the other idle. A round is a sound that was not heard
before: the time of its encoder alone, until the first token of its transcript, and of the whole
transcript, whose length is given, since weights are random.

This module imports nothing of tampu: its ggml, once loaded, would compute llama.cpp's graphs too.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np

from benchmarks.mtmd import Mtmd, Samples
from benchmarks.vision import Child

TEXT_FILE, TOWER_FILE = "qwen3-asr-0.6b-Q4_K_M.gguf", "qwen3-asr-0.6b-mmproj-F16.gguf"
AUDIO = ("<|audio_start|>", "<|audio_pad|>", "<|audio_end|>")
CONTEXT, RATE = 4096, 16_000
FIGURES = ("encoder", "first token", "transcript")


class Transcriber(Protocol):
    """An engine that turns a sound into tokens."""

    def seconds(self, sound: Samples, tokens: int) -> list[float]:
        """Return the times of `FIGURES`, the transcript having so many tokens."""
        ...


class Tampu:
    """tampu's engine in this process."""

    def __init__(self, out: Path, threads: int) -> None:
        from tampu.engine.engine import Engine

        tower = out / TOWER_FILE
        self.engine = Engine.load(
            out / TEXT_FILE, projector=tower, context=CONTEXT, threads=threads
        )

    def seconds(self, sound: Samples, tokens: int) -> list[float]:
        """The encoder's is what a prompt takes longer whose sound was not heard before."""
        first = self._ask(sound, 1, "a")
        known = self._ask(sound, 1, "b")  # the encoder's output is kept, the prompt is another
        return [first - known, first, first + self._ask(sound, tokens, "c") - known]

    def _ask(self, sound: Samples, tokens: int, system: str) -> float:
        """Return the seconds of a chat; another system message has another prompt."""
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": system},
            {"role": "user", "content": "", "audio": [sound]},
        ]
        began = time.perf_counter()
        self.engine.chat(messages, max_tokens=tokens, ignore_eos=True, temperature=0.0)
        return time.perf_counter() - began


class Library:
    """llama.cpp's library in this process, with the prompt that the template renders."""

    def __init__(self, out: Path, threads: int, library: Path) -> None:
        self.model = Mtmd(library, out / TEXT_FILE, out / TOWER_FILE, threads, CONTEXT)

    def seconds(self, sound: Samples, tokens: int) -> list[float]:
        """Encode the sound alone; then read the prompt, which encodes it again, and go on."""
        began = time.perf_counter()
        self.model.encode(sound)
        encoded = time.perf_counter() - began
        self.model.forget()
        prompt = f"<|im_start|>system\na<|im_end|>\n<|im_start|>user\n{self.model.marker}"
        began = time.perf_counter()
        token = self.model.read(f"{prompt}<|im_end|>\n<|im_start|>assistant\n", sound)
        first = time.perf_counter() - began
        for _ in range(tokens - 1):
            token = self.model.decode(token)
        return [encoded, first, time.perf_counter() - began]


def make_sound(seed: int, length: int) -> Samples:
    """Return so many seconds of noise, louder and quieter by turns."""
    source = np.random.default_rng(seed)
    noise = source.standard_normal(length * RATE) * 0.1
    loudness = 0.5 + 0.5 * np.sin(np.arange(len(noise)) / RATE * 2 * np.pi * 2)
    return (noise * loudness).astype(np.float32)


def serve(kind: str, arguments: argparse.Namespace) -> None:
    """Answer the seeds on standard input with the times; the child's main."""
    given = arguments.out, arguments.threads
    engine: Transcriber
    engine = Tampu(*given) if kind == "tampu" else Library(*given, arguments.library)
    print("ready", flush=True)
    for line in sys.stdin:
        sound = make_sound(int(line), arguments.length)
        print(json.dumps(engine.seconds(sound, arguments.tokens)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("out", type=Path, help="the folder that benchmarks.qwen3_asr filled")
    parser.add_argument("--library", type=Path, default=Path("libmtmd.so"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--length", type=int, default=60, help="of the sound, in seconds")
    parser.add_argument("--tokens", type=int, default=200, help="of the transcript")
    parser.add_argument("--serve", choices=["tampu", "library"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments)
        return
    more = ["--length", str(arguments.length), "--tokens", str(arguments.tokens)]
    children = {
        kind: Child(kind, arguments, "benchmarks.transcription", more)
        for kind in ("tampu", "library")
    }
    rounds: list[dict[str, list[float]]] = []
    try:
        for seed in range(arguments.rounds + 1):
            found = {kind: child.seconds(seed) for kind, child in children.items()}
            rounds += [found] if seed else []  # the first one warms up
            print(f"round {seed}: {found}", file=sys.stderr)
    finally:
        for child in children.values():
            child.close()
    print("| figure | tampu | llama.cpp | ratio |")
    print("|---|---|---|---|")
    for index, name in enumerate(FIGURES):
        ours, theirs = (median(each[kind][index] for each in rounds) for kind in children)
        ratio = median(each["library"][index] / each["tampu"][index] for each in rounds)
        print(f"| {name} | {ours:.2f} s | {theirs:.2f} s | {ratio:.2f} |")


if __name__ == "__main__":
    main()
