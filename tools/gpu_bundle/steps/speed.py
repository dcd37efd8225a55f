"""Speed of a model of real size with random weights, and what the device does meanwhile.

Prompt and decoding are measured as `tampu bench` does it. How long the device computes, and what is
copied, comes from CUPTI, through PyTorch's profiler in the same process, where that is there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf

from benchmarks import hybrid, models, moe
from benchmarks.random_models import QUANT_MIXES, Decoder, Planned, QuantMix, write_file
from tampu.bench.bench import Native, Work, random_tokens, run_once
from tampu.engine.engine import Engine
from tampu.ml.threads import usable_cpus
from tampu.ml.types import GGMLType
from tampu.runner.events import TextDelta
from tools.gpu_bundle.report import print_begin, print_row
from tools.gpu_bundle.steps.limits import FILE as LIMITS

MIX = "Q4_K_M"
THREADS = len(usable_cpus())
STREAMS = (1, 8, 64, 256)
PROMPT, ANSWER = 128, 64
QWEN3_8B = Decoder(
    layers=36, vocabulary=151_936, hidden=4096, heads=32, kv_heads=8, head_size=128,
    feed_forward=12_288, context=40_960, epsilon=1e-6, rope_base=1_000_000.0,
    norms=("attn_norm", "attn_q_norm", "attn_k_norm", "ffn_norm"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """A model.

    Attributes:
        name: as in the report.
        write: writes it to a path with a number of layers.
        layers: how many it has.
        used: the part of its weights that a token uses.
    """

    name: str
    write: Callable[[Path, int], None]
    layers: int
    used: float = 1.0


def _write_llama(path: Path, layers: int) -> None:
    models.write_model(path, MIX, layers, THREADS)


def _write_qwen3(path: Path, layers: int) -> None:
    decoder = replace(QWEN3_8B, layers=layers)

    def plan(mix: QuantMix) -> Iterator[Planned]:
        table = (decoder.vocabulary, decoder.hidden)
        yield Planned("token_embd.weight", "token_embd", table, mix.matrix)
        yield Planned("output.weight", "output", table, mix.embedding)
        yield Planned("output_norm.weight", "norm", (decoder.hidden,), GGMLType.F32)
        for layer in range(layers):
            yield from decoder.plan_layer(layer, mix)

    def add_metadata(writer: gguf.GGUFWriter) -> None:
        decoder.add_metadata(writer, f"Random Qwen3 8B {MIX}", QUANT_MIXES[MIX])
        moe.add_vocabulary(writer, decoder.vocabulary)

    write_file(path, "qwen3", add_metadata, plan(QUANT_MIXES[MIX]), THREADS)


def _write_moe(path: Path, _layers: int) -> None:
    planned = moe.plan(QUANT_MIXES[MIX])
    write_file(path, "qwen3moe", moe.add_metadata, planned, THREADS)


def _write_hybrid(path: Path, layers: int) -> None:
    hybrid.write_hybrid(path, "qwen35", layers, THREADS)


SHAPES = {
    "llama": Shape("Llama 3.2 1B", _write_llama, models.DECODER.layers),
    "qwen3": Shape("Qwen3 8B", _write_qwen3, QWEN3_8B.layers),
    "qwen3moe": Shape(
        "Qwen3 30B-A3B, 8 of 48 layers", _write_moe, moe.DECODER.layers,
        moe.USED_EXPERTS / moe.DECODER.experts,
    ),
    "qwen35": Shape("Qwen3.5 4B", _write_hybrid, hybrid.DENSE.layers),
}  # fmt: skip


def make(folder: Path, name: str, *, small: bool) -> Path:
    """Return the file of a model, written unless it is there."""
    shape = SHAPES[name]
    layers = 4 if small else shape.layers  # of which one has attention
    path = folder / f"{name}-{layers}.gguf"
    if not path.is_file():
        began = time.monotonic()
        shape.write(path, layers)
        size = path.stat().st_size / 2**20
        seconds = time.monotonic() - began
        print_row(
            f"{shape.name}, {layers} layers, {MIX}", f"{size:.0f} MiB, made in {seconds:.0f} s"
        )
    return path


def limits() -> dict[str, float]:
    """Return what `steps.limits` measured."""
    with contextlib.suppress(OSError):
        found: dict[str, float] = json.loads((Path.home() / LIMITS).read_text())
        return found
    return {}


def measure_bench(path: Path, shape: Shape, *, small: bool) -> None:
    """Print prompt and decoding speed at two depths."""
    depths = (0, 64) if small else (0, 8192)
    works = (
        [Work("pp", 64), Work("tg", 8)]
        if small
        else [Work("pp", 512), Work("pp", 4096), Work("tg", 128)]
    )
    context = max(depths) + max(work.tokens for work in works)
    native = Native(path, threads=THREADS, context=context)
    source = random.Random(1)
    try:
        for depth in depths:
            history = random_tokens(depth, native.vocabulary, source)
            for work in works:
                speeds = [
                    run_once(
                        native, work, history, random_tokens(work.tokens, native.vocabulary, source)
                    )
                    for _ in range(3)
                ]
                speed = sorted(speeds[1:])[-1]
                print_row(f"{work.name} at depth {depth}", _speed(speed, work, path, shape))
    finally:
        native.close()


def _speed(speed: float, work: Work, path: Path, shape: Shape) -> str:
    """Return a speed, and its share of the card's limit where that is known."""
    text, known = f"{speed:.1f} tokens/s", limits()
    size = path.stat().st_size * shape.used
    if not known:
        return text
    if work.kind == "tg":
        return (
            f"{text}, weights read at {100 * speed * size / known['bytes_per_s']:.0f} % of a copy"
        )
    weights = size * 8 / 4.85  # of Q4_K_M's bits a weight
    return f"{text}, {100 * speed * 2 * weights / known['flops']:.0f} % of BF16 products"


def measure_streams(path: Path, *, small: bool) -> None:
    """Print the speed of several requests, the first token, and what the device does."""
    for count in (1, 2) if small else STREAMS:
        print_begin(f"{count} streams")
        context = PROMPT + ANSWER + 64
        with Engine.load(path, context=context, slots=count, threads=THREADS) as engine:
            answer = 8 if small else ANSWER
            together(engine, count, answer)  # builds the graphs
            seconds, first = together(engine, count, answer)
            print_row(
                f"{count} streams of {PROMPT} + {answer} tokens",
                f"{count * answer / seconds:.1f} tokens/s, first token after {1000 * first:.0f} ms",
            )
            if count in (1, 8):
                profile(engine, count, answer)


def together(engine: Engine, count: int, answer: int) -> tuple[float, float]:
    """Ask several requests at once; return the seconds of all and of the median first token."""
    source, firsts = random.Random(count + time.monotonic_ns()), [0.0] * count
    prompts = [random_tokens(PROMPT, 10_000, source) for _ in range(count)]
    began = time.perf_counter()

    def ask(index: int) -> None:
        for event in engine.stream(
            prompts[index], max_tokens=answer, ignore_eos=True, temperature=0
        ):
            if isinstance(event, TextDelta) and not firsts[index]:
                firsts[index] = time.perf_counter() - began

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began, sorted(firsts)[count // 2]


def profile(engine: Engine, count: int, answer: int) -> None:
    """Print splits of a step, and from CUPTI how long the device computes and what is copied."""
    splits = engine.runner.graphs._backend.splits
    print_row(f"parts of a step with {count} streams", f"{splits}")
    what = f"the device with {count} streams"
    try:
        import torch
        from torch.profiler import ProfilerActivity
    except ImportError:
        print_row(what, "idle time not measured: PyTorch's profiler is not installed")
        return
    if not torch.cuda.is_available():
        print_row(what, "idle time not measured: no CUDA device, so CUPTI has no counters")
        return
    torch.zeros(1, device="cuda")  # starts CUPTI's context
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
        together(engine, count, answer)
    kernels = [each for each in profiler.events() if each.device_type.name == "CUDA"]
    if not kernels:
        print_row(what, "idle time not measured: CUPTI saw no kernels of ggml's")
        return
    print_row(what, _idle(kernels, count * answer))


def _idle(events: Sequence[Any], tokens: int) -> str:
    """Return the idle part between the first and the last event of the device, and its copies."""
    spans = sorted((each.time_range.start, each.time_range.end) for each in events)
    busy, until = 0.0, spans[0][0]
    for begin, end in spans:
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    whole = until - spans[0][0]
    copies = [each for each in events if "Memcpy" in each.name]
    return (
        f"idle {100 * (1 - busy / whole):.1f} % of {whole / 1000:.0f} ms, "
        f"{len(copies) / tokens:.1f} copies a token, {len(spans) / tokens:.0f} kernels a token"
    )


def main() -> None:
    """Measure one model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("backend")
    parser.add_argument("model", choices=SHAPES)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--skip", nargs="*", default=())
    given = parser.parse_args()
    shape = SHAPES[given.model]
    path = make(given.folder, given.model, small=given.small)
    if "bench" not in given.skip:
        print_begin("bench")
        measure_bench(path, shape, small=given.small)
    measure_streams(path, small=given.small)


if __name__ == "__main__":
    main()
