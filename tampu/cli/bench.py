"""`tampu bench`: the speed of a model, alone or side by side with llama.cpp."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tampu.bench import PEER, check_peer
from tampu.cli.arguments import AsJSON, ModelOrFile, Threads
from tampu.cli.table import table
from tampu.errors import ComputeError, RequestError, RunnerDiedError

if TYPE_CHECKING:
    from tampu.bench.bench import Plan, Result


def bench_command(
    model: ModelOrFile = "",
    tests: Annotated[
        str,
        typer.Option(
            help="Tests to run: ppN for prefill of N tokens, tgN for decoding of N tokens."
        ),
    ] = "pp512,tg64",
    depth: Annotated[
        str, typer.Option(help="Number of tokens in the context before each test.")
    ] = "0",
    threads: Threads = None,
    repetitions: Annotated[
        int, typer.Option(min=1, max=1000, help="How often to run each test.")
    ] = 3,
    cache_type: Annotated[
        str, typer.Option(help="Element type of tampu's KV cache: f16, f32 or q8_0.")
    ] = "f16",
    peer: Annotated[
        str | None,
        typer.Option(help=f"Compare with {PEER}, side by side (needs the pip extra `bench`)."),
    ] = None,
    peer_library: Annotated[
        Path | None, typer.Option(help="Use this libllama instead of the xllamacpp package's.")
    ] = None,
    kernels: Annotated[
        bool,
        typer.Option(
            "--kernels",
            help="Measure the C kernels against the limits of the hardware instead; with a MODEL, "
            "also measure its speed for different numbers of tokens per batch.",
        ),
    ] = False,
    chart: Annotated[
        Path | None,
        typer.Option(help="Write a chart of these speeds to an SVG file (with --kernels MODEL)."),
    ] = None,
    json: AsJSON = False,
) -> None:
    """Measure prefill and decoding speed in tokens per second."""
    if chart and not (kernels and model):
        raise RequestError("--chart needs --kernels and a MODEL")
    check_peer(peer)
    if kernels:
        print(_kernel_rates(threads, as_json=json))
    elif not model:
        raise RequestError("no model: give a name or a GGUF file, or use --kernels")
    if not model:
        return
    from tampu.bench.bench import Plan, Work, parse_depths, parse_tests
    from tampu.bench.charts import TOKENS
    from tampu.ml.machine import default_threads

    plan = Plan(
        works=[Work("pp", n) for n in TOKENS] if kernels else parse_tests(tests),
        depths=[0] if kernels else parse_depths(depth),
        threads=threads or default_threads(),
        repetitions=repetitions,
    )
    results, peer_name = _measure(plan, model, peer, peer_library, cache_type)
    print(_chart(results, model, plan.threads, chart) if kernels else _as_text(results, json))
    if peer_name and not json:
        print(f"peer: {peer_name}")


def _kernel_rates(threads: int | None, *, as_json: bool) -> str:
    from tampu.ml import Backend
    from tampu.ml.kernels.roofline import as_table, describe, kernels_of, measure, measure_peaks

    with closing(Backend(threads=threads)) as backend:
        measured = kernels_of(backend)
        peaks = measure_peaks(measured, backend.threads)
        rates = list(measure(backend, peaks))
        machine = describe(peaks, measured.level, backend.threads)
    return _to_json(rates) if as_json else f"{machine}\n{as_table(rates)}"


def _chart(results: list[Result], model: str, threads: int, path: Path | None) -> str:
    """Return the speeds as text bars; write an SVG chart to `path` if it is given."""
    from tampu.bench.charts import chart, svg_chart

    if path:
        path.write_text(svg_chart(results, f"{Path(model).stem}, {threads} threads"))
    return chart(results)


def _measure(
    plan: Plan, model: str, peer: str | None, library: Path | None, cache_type: str
) -> tuple[list[Result], str]:
    """Measure everything; return the results and the name of the peer, empty without one."""
    from tampu.backends.llamacpp.files import llama_files
    from tampu.bench.bench import Native
    from tampu.bench.llama_cpp import LlamaCpp, missing_sets
    from tampu.store.catalog import resolve

    path = resolve(model)
    threads, context = plan.threads, plan.context
    with ExitStack() as opened:
        native = Native(path, threads=threads, context=context, cache_type=cache_type)
        ours = opened.enter_context(closing(native))
        if 0 < native.trained_context < context:
            _warn(f"the model was trained with {native.trained_context} tokens, not {context}")
        if peer is None:
            return plan.run(ours, None), ""
        folder = Path(opened.enter_context(TemporaryDirectory(prefix="tampu-")))
        try:
            text = llama_files(path, None, folder).text
            other = LlamaCpp(text, threads=threads, context=context, library=library)
        except (ComputeError, RunnerDiedError) as error:  # the file has what only tampu knows
            print(f"{error}; only tampu is measured", file=sys.stderr)
            return plan.run(ours, None), ""
        opened.callback(other.close)
        if missing := missing_sets(native.instruction_sets, other.system):
            _warn(
                f"the comparison is uneven: {other.name} was built without {', '.join(missing)}, "
                "which tampu uses; give a build for this processor with --peer-library"
            )
        return plan.run(ours, other), f"{other.name} ({other.system})"


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def _to_json(results: object) -> str:
    return msgspec.json.format(msgspec.json.encode(results), indent=2).decode()


def _as_text(results: list[Result], as_json: bool) -> str:
    if as_json:
        return _to_json(results)
    rows = [
        (
            str(result.test),
            str(result.depth),
            str(result.threads),
            f"{result.tokens_per_second:.2f}",
            f"{result.peer_tokens_per_second:.2f}" if result.peer_tokens_per_second else "-",
            f"{result.ratio:.2f}" if result.ratio else "-",
        )
        for result in results
    ]
    return table(("test", "depth", "threads", "tokens/s", "peer", "ratio"), rows)
