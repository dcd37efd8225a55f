"""A minute of sound to text, beside llama.cpp: `python -m benchmarks.transcription`.

    python -m benchmarks.hearing OUT --model voxtral-mini
    python -m benchmarks.transcription OUT --model voxtral-mini --library DIR/libmtmd.so
    python -m benchmarks.transcription OUT --live

The last one measures live transcription (`benchmarks.live`), tampu alone.

tampu's engine and llama.cpp's library libmtmd, built for the machine, with the same two files. Each
has a process of its own; they take turns, the other idle. A round is a sound that was not heard
before: the time of its encoder alone, until the first token of its transcript, and of the whole
transcript, whose length is given, since weights are random.

Nothing of tampu is imported beside llama.cpp: its ggml, once loaded, would compute llama.cpp's
graphs too.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np

from benchmarks.mtmd import Mtmd, Samples
from benchmarks.vision import Child

CONTEXT, RATE = 4096, 16_000
FIGURES = ("encoder", "first token", "transcript")


@dataclass(frozen=True)
class Model:
    """A model of `benchmarks.hearing`.

    Attributes:
        name: its files begin with it.
        control: its control tokens beside those of every model with random weights.
        before: the prompt before a sound.
        after: and behind it.
    """

    name: str
    control: tuple[str, ...]
    before: str
    after: str

    @property
    def text_file(self) -> str:
        """The name of the text model's file."""
        return f"{self.name}-Q4_K_M.gguf"

    @property
    def tower_file(self) -> str:
        """The name of the encoder's file."""
        return f"{self.name}-mmproj-F16.gguf"


MODELS = {
    "qwen3-asr-0.6b": Model(
        "qwen3-asr-0.6b",
        ("<|audio_start|>", "<|audio_pad|>", "<|audio_end|>", "<asr_text>"),
        "<|im_start|>system\na<|im_end|>\n<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n",
    ),
    "voxtral-mini": Model(
        "voxtral-mini",
        (
            "[BEGIN_AUDIO]", "[AUDIO]", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
            "[TRANSCRIBE]",
        ),
        "[SYSTEM_PROMPT]a[/SYSTEM_PROMPT][INST]",
        "[/INST]",
    ),
}  # fmt: skip


class Transcriber(Protocol):
    """An engine that turns a sound into tokens."""

    def seconds(self, sound: Samples, tokens: int) -> list[float]:
        """Return the times of `FIGURES`, the transcript having so many tokens."""
        ...


class Tampu:
    """tampu's engine in this process."""

    def __init__(self, out: Path, model: Model, threads: int) -> None:
        from tampu.engine.engine import Engine

        text, tower = out / model.text_file, out / model.tower_file
        self.engine = Engine.load(text, projector=tower, context=CONTEXT, threads=threads)

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

    def __init__(self, out: Path, model: Model, threads: int, library: Path) -> None:
        text, tower = out / model.text_file, out / model.tower_file
        self.prompt = model
        self.model = Mtmd(library, text, tower, threads, CONTEXT)

    def seconds(self, sound: Samples, tokens: int) -> list[float]:
        """Encode the sound alone; then read the prompt, which encodes it again, and go on."""
        began = time.perf_counter()
        self.model.encode(sound)
        encoded = time.perf_counter() - began
        self.model.forget()
        prompt = f"{self.prompt.before}{self.model.marker}{self.prompt.after}"
        began = time.perf_counter()
        token = self.model.read(prompt, sound)
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
    given = arguments.out, MODELS[arguments.model], arguments.threads
    engine: Transcriber
    engine = Tampu(*given) if kind == "tampu" else Library(*given, arguments.library)
    print("ready", flush=True)
    for line in sys.stdin:
        sound = make_sound(int(line), arguments.length)
        print(json.dumps(engine.seconds(sound, arguments.tokens)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("out", type=Path, help="the folder that benchmarks.hearing filled")
    parser.add_argument("--model", choices=[*MODELS], default=next(iter(MODELS)))
    parser.add_argument("--library", type=Path, default=Path("libmtmd.so"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--length", type=int, default=60, help="of the sound, in seconds")
    parser.add_argument("--tokens", type=int, default=200, help="of the transcript")
    parser.add_argument(
        "--live", action="store_true", help="delay and memory of live transcription"
    )
    parser.add_argument("--serve", choices=["tampu", "library"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments)
        return
    if arguments.live:
        from benchmarks.live import measure

        measure(arguments.out, MODELS[arguments.model], arguments.threads)
        return
    more = f"--model {arguments.model} --length {arguments.length} --tokens {arguments.tokens}"
    children = {
        kind: Child(kind, arguments, "benchmarks.transcription", more.split())
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
