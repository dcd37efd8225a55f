"""Speed of a model of real size with random weights, and what the device does meanwhile.

Prompt and decoding are measured as `tampu bench` does it. How long the device computes, and what is
copied, comes from CUPTI, through PyTorch's profiler in the same process, where that is there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
PROFILED = 8  # requests at once, at most
PROMPT, ANSWER = 128, 64
_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
QWEN3_8B = Decoder(
    layers=36, vocabulary=151_936, hidden=4096, heads=32, kv_heads=8, head_size=128,
    feed_forward=12_288, context=40_960, epsilon=1e-6, rope_base=1_000_000.0,
    norms=("attn_norm", "attn_q_norm", "attn_k_norm", "ffn_norm"),
)  # fmt: skip


SMALL = replace(
    QWEN3_8B, layers=4, vocabulary=16_384, hidden=512, heads=8, kv_heads=2, feed_forward=1024
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A model.

    Attributes:
        write: writes it to a path.
        about: its layers, where there are fewer than in the model that it is named after.
        used: the part of its experts that a token uses.
        mix: the types of its weights.
    """

    write: Callable[[Path], None]
    about: str = ""
    used: float = 1.0
    mix: str = MIX


def _write_llama(path: Path) -> None:
    models.write_model(path, MIX, models.DECODER.layers, THREADS)


def _write_qwen3(path: Path, decoder: Decoder, mix: str) -> None:
    def plan(mix: QuantMix) -> Iterator[Planned]:
        table = (decoder.vocabulary, decoder.hidden)
        yield Planned("token_embd.weight", "token_embd", table, mix.matrix)
        yield Planned("output.weight", "output", table, mix.embedding)
        yield Planned("output_norm.weight", "norm", (decoder.hidden,), GGMLType.F32)
        for layer in range(decoder.layers):
            yield from decoder.plan_layer(layer, mix)

    def add_metadata(writer: gguf.GGUFWriter) -> None:
        decoder.add_metadata(writer, f"Random Qwen3 {mix}", QUANT_MIXES[mix])
        moe.add_vocabulary(writer, decoder.vocabulary)

    write_file(path, "qwen3", add_metadata, plan(QUANT_MIXES[mix]), THREADS)


def _write_moe(path: Path) -> None:
    planned = moe.plan(QUANT_MIXES[MIX])
    write_file(path, "qwen3moe", moe.add_metadata, planned, THREADS)


def _write_hybrid(path: Path) -> None:
    hybrid.write_hybrid(path, "qwen35", hybrid.DENSE.layers, THREADS)


SHAPES = {
    "Llama 3.2 1B": Shape(_write_llama),
    "Qwen3 8B": Shape(lambda path: _write_qwen3(path, QWEN3_8B, MIX)),
    "Qwen3 30B-A3B": Shape(
        _write_moe, ", 8 of 48 layers", moe.USED_EXPERTS / moe.DECODER.experts
    ),
    "Qwen3.5 4B": Shape(_write_hybrid),
    # Software drivers take a quarter of an hour to compile the code of quantized products.
    "a small model": Shape(lambda path: _write_qwen3(path, SMALL, "F16"), mix="F16"),
}  # fmt: skip


def make(folder: Path, name: str) -> Path:
    """Return the file of a model, written unless it is there; print its size."""
    path = folder / f"{name.replace(' ', '-')}.gguf"
    began, is_there = time.monotonic(), path.is_file()
    if not is_there:
        SHAPES[name].write(path)
    size = path.stat().st_size / 2**20
    made = "" if is_there else f", written here in {time.monotonic() - began:.0f} s"
    print_row(f"{name}, {SHAPES[name].mix}{SHAPES[name].about}", f"{size:.0f} MiB{made}")
    return path


@dataclass(frozen=True, slots=True)
class Cost:
    """What a token costs, next to what the card can do.

    Attributes:
        bytes: of weights that a generated token reads.
        weights: that a prompt's token is multiplied with, without the output layer.
        limits: of the card, as `steps.limits` measured them; empty: not known.
    """

    bytes: float
    weights: float
    limits: Mapping[str, float]

    @classmethod
    def of(cls, path: Path, used: float, limits: Mapping[str, float]) -> Cost:
        """Read it from a model's file; `used` is the part of the experts that a token uses."""
        tensors = {each.name: each for each in gguf.GGUFReader(path).tensors}
        if "output.weight" in tensors:
            del tensors["token_embd.weight"]  # of which a token reads one row
        shares = {name: used if "_exps." in name else 1.0 for name in tensors}
        layers = [name for name in tensors if name.startswith("blk.")]
        return cls(
            sum(int(tensors[name].n_bytes) * share for name, share in shares.items()),
            sum(int(tensors[name].n_elements) * shares[name] for name in layers),
            limits,
        )

    def describe(self, work: Work, speed: float) -> str:
        """Return a speed in tokens per second, and its share of the card's limit if known."""
        text = f"{speed:.1f} tokens/s"
        if not self.limits:
            return text
        if work.kind == "tg":
            share = speed * self.bytes / self.limits["bytes_per_s"]
            return f"{text}, weights read at {100 * share:.0f} % of the memory's speed"
        share = speed * 2 * self.weights / self.limits["flops"]
        return f"{text}, {100 * share:.0f} % of the BF16 products' speed"


def read_limits() -> dict[str, float]:
    """Return what `steps.limits` measured."""
    with contextlib.suppress(OSError):
        found: dict[str, float] = json.loads((Path.home() / LIMITS).read_text())
        return found
    return {}


def measure_bench(path: Path, cost: Cost, *, small: bool) -> None:
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
                print_row(f"{work.name} at depth {depth}", cost.describe(work, speed))
    finally:
        native.close()


def measure_streams(path: Path, skip: Sequence[str], *, small: bool) -> None:
    """Print the speed of several requests, the first token, and what the device does."""
    for count in (1, 2) if small else STREAMS:
        what = "1 request" if count == 1 else f"{count} requests"
        if what in skip:
            continue
        print_begin(what)
        context = PROMPT + ANSWER + 64
        with Engine.load(path, context=context, slots=count, threads=THREADS) as engine:
            answer = 8 if small else ANSWER
            together(engine, count, answer)  # builds the graphs
            seconds, first = together(engine, count, answer)
            print_row(
                f"{what} of {PROMPT} tokens, {answer} generated",
                f"{count * answer / seconds:.1f} tokens/s, first token after {1000 * first:.0f} ms",
            )
            if count <= PROFILED:
                profile(engine, what, count, answer)


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


def profile(engine: Engine, what: str, count: int, answer: int) -> None:
    """Print splits of a step, and from CUPTI how long the device computes and what is copied."""
    splits = engine.runner.graphs.backend.splits
    print_row(f"parts of a step that devices compute in turn, {what}", f"{splits}")
    what = f"the device, {what}"
    try:
        import torch
        from torch.profiler import ProfilerActivity
    except ImportError:
        print_row(what, "not measured: PyTorch's profiler is not installed")
        return
    if not torch.cuda.is_available():
        print_row(what, "not measured: no CUDA device, so CUPTI has no counters")
        return
    torch.zeros(1, device="cuda")  # starts CUPTI's context
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
        together(engine, count, answer)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(file))
        trace = json.loads(file.read_text())
    print_row(what, describe_trace(trace["traceEvents"], count * answer))


def describe_trace(events: Sequence[Mapping[str, Any]], tokens: int) -> str:
    """Return what a trace of PyTorch's profiler says of the device, by generated token.

    It is idle for the part of the time between its first and its last work in which it has none.
    """
    work = [each for each in events if each.get("cat") in _WORK]
    kernels = sum(each["cat"] == "kernel" for each in work)
    if not kernels:
        return "not measured: CUPTI saw no kernels of ggml's"
    spans = sorted((each["ts"], each["ts"] + each["dur"]) for each in work)
    busy, until = 0.0, spans[0][0]
    for begin, end in spans:
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    whole = until - spans[0][0]
    copied = [each["args"].get("bytes", 0) for each in work if each["cat"] == "gpu_memcpy"]
    return (
        f"idle for {100 * (1 - busy / whole):.1f} % of {whole / 1000:.0f} ms; for each generated "
        f"token {kernels / tokens:.0f} kernels, {len(copied) / tokens:.1f} copies of "
        f"{sum(copied) / tokens / 1024:.1f} KiB together"
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
    path = make(given.folder, given.model)
    if "bench" not in given.skip:
        print_begin("bench")
        limits = {} if given.backend == "cpu" else read_limits()
        cost = Cost.of(path, SHAPES[given.model].used, limits)
        measure_bench(path, cost, small=given.small)
    measure_streams(path, given.skip, small=given.small)


if __name__ == "__main__":
    main()
