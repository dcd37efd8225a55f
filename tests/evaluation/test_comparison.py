"""Comparing two quantizations of a model, and tampu with llama.cpp."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from support import llama_cpp as reference
from support.tiny_model import Tiny, tiny_weights, write_tiny

from tampu import Comparison, Engine, compare
from tampu.backends.llamacpp.files import llama_files
from tampu.convert.quantize import quantize_file
from tampu.errors import ModelNotFoundError, RequestError
from tampu.evaluation.picture import svg_picture
from tests.cli.conftest import Run, run

__all__ = ["run"]  # the fixture

DEMO = Path(__file__).parents[2] / "tampu" / "data" / "demo.gguf"
TEXT = " ".join(f"What is {a} + {b}? {a} + {b} = {a + b}." for a in range(20, 40) for b in (7, 58))
CONTEXT = 72  # the positions that are scored, 35, are many to every level of the kernels


@pytest.fixture(scope="module")
def smaller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quantized") / "demo-q4.gguf"
    quantize_file(DEMO, path, "Q4_0", overrides=[], requantize=True, threads=1)
    return path


@pytest.fixture(scope="module")
def found(smaller: Path) -> Comparison:
    return compare("demo", smaller, text=TEXT, context=CONTEXT, max_windows=4)


def test_a_file_is_equal_to_itself() -> None:
    same = compare("demo", DEMO, text=TEXT, context=CONTEXT)
    assert not same.positions.kl.any()
    assert (same.kl.maximum, same.same_top.value, same.worst) == (0.0, 1.0, ())
    assert same.perplexity_a == same.perplexity_b


def test_a_quantization_differs_and_the_worst_positions_are_listed(found: Comparison) -> None:
    assert found.windows == 4
    assert found.scored == 4 * (CONTEXT // 2 - 1) == len(found.positions.kl)
    assert 0 < found.kl.median < found.kl.percentile_99 <= found.kl.maximum
    assert 0.5 < found.same_top.value < 1
    assert found.perplexity_b.value != found.perplexity_a.value
    assert [each.kl for each in found.worst] == sorted(found.positions.kl)[:-6:-1]
    for each in found.worst:
        assert each.before + each.token in TEXT


def test_the_values_are_those_of_the_logits_of_whole_windows(found: Comparison) -> None:
    with Engine.load("demo", context=CONTEXT, slots=1, spec_type="none") as engine:
        tokens = engine.tokenize(TEXT)[:CONTEXT]
        logits = engine.logits(tokens).astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected = [logprobs[at - 1, tokens[at]] for at in range(CONTEXT // 2 + 1, CONTEXT)]
    assert found.positions.logprobs_a[: len(expected)] == pytest.approx(expected, abs=1e-5)


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same values in F32: quantized ones are multiplied differently from engine to engine."""
    path = tmp_path_factory.mktemp("exact") / "demo-f32.gguf"
    quantize_file(DEMO, path, "F32", overrides=[], requantize=True, threads=1)
    return path


@pytest.mark.server
def test_llama_cpp_has_the_same_perplexity(exact: Path) -> None:
    both = compare(exact, text=TEXT, peer="llama.cpp", context=64)
    assert "llama.cpp" in both.b
    assert both.perplexity_a.value == pytest.approx(both.perplexity_b.value, rel=1e-3)
    assert 0 < both.kl.mean.value < 1e-3


@pytest.mark.server
def test_llama_cpp_is_scored_as_its_server_does(exact: Path, tmp_path: Path) -> None:
    both = compare(exact, text=TEXT, peer="llama.cpp", context=64, max_windows=1)
    with Engine.load("demo") as engine:
        window = engine.tokenize(TEXT)[:64]
    path = llama_files(exact, None, tmp_path).text  # without the vision encoder
    expected = reference.last_logprobs(path, window, 31)
    assert both.positions.logprobs_b.tolist() == pytest.approx(expected, abs=1e-3)
    perplexity = math.exp(-sum(expected) / len(expected))
    assert both.perplexity_a.value == pytest.approx(perplexity, rel=1e-3)


def test_the_picture_has_a_point_for_each_position(found: Comparison) -> None:
    drawn = ElementTree.fromstring(svg_picture(found))
    lines = [each.get("points", "").split() for each in drawn if each.tag.endswith("polyline")]
    assert [len(line) for line in lines] == [found.scored] * 2
    heights = [float(point.split(",")[1]) for point in lines[0]]
    assert heights.index(min(heights)) == int(found.positions.kl.argmax())


def test_the_command_prints_what_the_function_returns(
    run: Run, tmp_path: Path, smaller: Path, found: Comparison
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT, encoding="utf-8")
    chart = tmp_path / "chart.svg"
    asked = ("compare", "demo", smaller, "--text", text, "--context", CONTEXT, "--windows", 4)
    code, out, _ = run(*asked, "--json", "--chart", chart)
    assert code == 0
    printed = json.loads(out)
    assert printed["kl"]["mean"] == {"value": found.kl.mean.value, "error": found.kl.mean.error}
    assert printed["perplexity_b"]["value"] == found.perplexity_b.value
    assert "positions" not in printed
    assert chart.read_text(encoding="utf-8") == svg_picture(found)
    code, out, _ = run(*asked)
    assert code == 0
    assert f"{found.perplexity_a.value:.4f} ± {found.perplexity_a.error:.4f}" in out


def test_what_cannot_be_compared_is_refused_by_name(run: Run, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    other = write_tiny(tmp_path / "other.gguf", Tiny(context=256))
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\x80\x81" * 2000)
    head = np.ones((1, Tiny().embedding), np.float32)
    weights = tiny_weights(Tiny(context=256)) | {"cls.output.weight": head}
    ranker = write_tiny(tmp_path / "ranker.gguf", Tiny(context=256), weights=weights, pooling=4)
    for arguments, message in (
        (("demo", "demo", "--text", tmp_path / "none.txt"), "none.txt: cannot be read: No such"),
        (("demo", "demo", "--text", binary), "binary.txt: "),
        (("demo", other, "--text", text, "--context", 64), "have different vocabularies: 1363 and"),
        (("demo", "demo", "--text", text, "--context", 2000), "the text is too short: it has"),
        (("demo", "demo", "--text", text, "--context", 4096), "windows of 4096 are too long"),
        (("demo", "none.gguf", "--text", text, "--context", 64), "none.gguf"),
        (("demo", "demo", "--text", text, "--peer", "vllm"), "unknown peer 'vllm'"),
        ((ranker, ranker, "--text", text, "--context", 64), "does not generate text"),
    ):
        code, out, err = run("compare", *arguments)
        assert (code, out) == (2, ""), arguments
        assert err.startswith("Error: ")
        assert message in err
        assert len(err.splitlines()) == 1


def test_python_gets_the_same_errors() -> None:
    with pytest.raises(RequestError, match="compare demo with what"):
        compare("demo", text=TEXT)
    with pytest.raises(ModelNotFoundError):
        compare("demo", "no-such-model", text=TEXT, context=CONTEXT)
    with pytest.raises(RequestError, match="max_windows must be 1"):
        compare("demo", "demo", text=TEXT, max_windows=0)
    with pytest.raises(RequestError, match="text"):
        compare("demo", "demo", text=3)  # type: ignore[arg-type]
