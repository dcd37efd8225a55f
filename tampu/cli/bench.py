"""`tampu bench`: the speed of a model, alone or side by side with llama.cpp."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tampu.cli.completion import complete_model
from tampu.errors import RequestError

if TYPE_CHECKING:
    from tampu.bench.bench import Plan, Result

PEER = "llama.cpp"


def bench_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="The path of a GGUF file, or a model's name.",
            autocompletion=complete_model,
        ),
    ] = "",
    tests: Annotated[
        str,
        typer.Option(
            help="Tests to run: ppN for prefill of N tokens, tgN for decoding of N tokens."
        ),
    ] = "pp512,tg64",
    depth: Annotated[
        str, typer.Option(help="Number of tokens in the context before each test.")
    ] = "0",
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=512, help="Number of CPU threads (default: one per core)."),
    ] = None,
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
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Measure prefill and decoding speed in tokens per second."""
    if chart and not (kernels and model):
        raise RequestError("--chart needs --kernels and a MODEL")
    if kernels:
        print(_kernel_rates(threads, as_json=json))
        if model:
            print(_speeds_at_once(model, threads, repetitions, peer, peer_library, chart))
        return
    if not model:
        raise RequestError("no model given: name one, or a GGUF file, or use --kernels")
    plan = _plan(tests, depth, threads, repetitions)
    results, names = _measure(plan, model, peer, peer_library, cache_type)
    print(_to_json(results) if json else _as_table(results, names))


def _kernel_rates(threads: int | None, *, as_json: bool) -> str:
    from tampu.ml import Backend
    from tampu.ml.kernels.roofline import as_table, describe, kernels_of, measure, measure_peaks

    with closing(Backend(threads=threads)) as backend:
        measured = kernels_of(backend)
        peaks = measure_peaks(measured, backend.threads)
        rates = list(measure(backend, peaks))
        machine = describe(peaks, measured.level, backend.threads)
    return _to_json(rates) if as_json else f"{machine}\n{as_table(rates)}"


def _speeds_at_once(
    model: str,
    threads: int | None,
    repetitions: int,
    peer: str | None,
    library: Path | None,
    drawing: Path | None,
) -> str:
    """Measure the speed for different batch sizes; return text bars, and write an SVG if asked."""
    from tampu.bench.bench import Plan, Work
    from tampu.bench.charts import TOKENS, chart, svg_chart
    from tampu.ml.devices import default_threads

    plan = Plan(
        works=[Work("pp", tokens) for tokens in TOKENS],
        depths=[0],
        threads=threads or default_threads(),
        repetitions=repetitions,
    )
    results, names = _measure(plan, model, peer, library)
    if drawing:
        drawing.write_text(svg_chart(results, f"{Path(model).stem}, {plan.threads} threads"))
    return "\n".join([chart(results), *(f"peer: {name}" for name in names[1:])])


def _plan(tests: str, depth: str, threads: int | None, repetitions: int) -> Plan:
    from tampu.bench.bench import Plan, parse_depths, parse_tests
    from tampu.ml.devices import default_threads

    return Plan(
        works=parse_tests(tests),
        depths=parse_depths(depth),
        threads=threads or default_threads(),
        repetitions=repetitions,
    )


def _measure(
    plan: Plan, model: str, peer: str | None, library: Path | None, cache_type: str = "f16"
) -> tuple[list[Result], list[str]]:
    """Measure everything; return the results and the names of the subjects."""
    from tampu.bench.bench import Native
    from tampu.bench.llama_cpp import LlamaCpp
    from tampu.store.catalog import resolve

    if peer not in (None, PEER):
        raise RequestError(f"unknown peer {peer!r}: the only one is {PEER}")
    path = resolve(model)
    threads, context = plan.threads, plan.context
    with ExitStack() as opened:
        native = Native(path, threads=threads, context=context, cache_type=cache_type)
        ours = opened.enter_context(closing(native))
        if peer is None:
            return plan.run(ours, None), [ours.name]
        other = LlamaCpp(path, threads=threads, context=context, library=library)
        opened.callback(other.close)
        return plan.run(ours, other), [ours.name, f"{other.name} ({other.system})"]


def _to_json(results: object) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(results), indent=2).decode()


def _as_table(results: list[Result], names: list[str]) -> str:
    lines = [f"{'test':>8} {'depth':>6} {'threads':>7} {'tokens/s':>10} {'peer':>10} {'ratio':>6}"]
    for result in results:
        peer = f"{result.peer_tokens_per_second:.2f}" if result.peer_tokens_per_second else "-"
        ratio = f"{result.ratio:.2f}" if result.ratio else "-"
        lines.append(
            f"{result.test:>8} {result.depth:>6} {result.threads:>7} "
            f"{result.tokens_per_second:>10.2f} {peer:>10} {ratio:>6}"
        )
    return "\n".join([*lines, *(f"peer: {name}" for name in names[1:])])
