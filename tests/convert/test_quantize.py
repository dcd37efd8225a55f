"""Whole files quantized: the values, the keys, and what is on disk when something goes wrong."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from support.full_disk import fail_at_each_write
from support.killing import kill_at_random
from support.tiny_model import Tiny, tiny_weights, write_tiny

from tampu import Engine
from tampu.cli.app import run
from tampu.convert.quant_mix import FILE_TYPES, Override
from tampu.convert.quantize import planned_types, quantize_file
from tampu.errors import (
    DiskFullError,
    ModelFileError,
    ModelNotFoundError,
    RequestError,
    UnsupportedModelError,
)
from tampu.ml.gguf import read_gguf
from tampu.ml.quantize import quantize
from tampu.ml.types import GGMLType

QUICK = ("F16", "Q8_0", "Q4_0", "Q4_K_M")
WIDE = Tiny(embedding=256, feed_forward=512, head_dim=64, layers=3)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("source") / "wide.gguf", WIDE)


def stored(path: Path, name: str) -> bytes:
    info = read_gguf(path).tensors[name]
    return path.read_bytes()[info.offset : info.offset + info.size_bytes]


@pytest.mark.parametrize(
    "type_",
    [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in FILE_TYPES],
)
def test_each_tensor_equals_ggmls_quantization(source: Path, tmp_path: Path, type_: str) -> None:
    made = tmp_path / "made.gguf"
    quantize_file(source, made, type_, threads=2)
    planned = planned_types(read_gguf(source), FILE_TYPES[type_])
    assert planned
    for name, values in tiny_weights(WIDE).items():
        kind = planned.get(name, GGMLType.F32)
        assert read_gguf(made).tensors[name].type == kind, name
        assert stored(made, name) == quantize(np.atleast_2d(values), kind).tobytes(), name
    assert read_gguf(made).metadata.integer("general.file_type") == FILE_TYPES[type_].number


def test_keys_keep_their_values_and_types(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 1)
    writer.add_uint8("x.u8", 200)
    writer.add_int8("x.i8", -3)
    writer.add_uint64("x.u64", 1 << 60)
    writer.add_float64("x.f64", 0.1)
    writer.add_bool("x.flag", True)
    writer.add_string("x.text", "zwölf")
    writer.add_array("x.floats", [0.5, 1.5])
    writer.add_array("x.flags", [True, False])
    writer.add_array("x.texts", ["a", "", "ü"])
    writer.add_uint32("general.alignment", 64)
    writer.data_alignment = 64
    for name in ("p.weight", "q.weight"):
        writer.add_tensor(name, np.ones((2, 40), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    quantize_file(path, tmp_path / "made.gguf", "F16")
    before, after = gguf.GGUFReader(path), gguf.GGUFReader(tmp_path / "made.gguf")
    for key, field in before.fields.items():
        if not key.startswith("GGUF."):
            assert after.fields[key].types == field.types, key
            assert after.fields[key].contents() == field.contents(), key
    assert {t.name: t.tensor_type.name for t in after.tensors} == {
        "p.weight": "F16",
        "q.weight": "F16",
    }
    assert {tensor.data_offset % 64 for tensor in after.tensors} == {0}


def test_the_result_runs(source: Path, tmp_path: Path) -> None:
    quantize_file(source, tmp_path / "made.gguf", "Q8_0")
    with (
        Engine.load(source, threads=1) as exact,
        Engine.load(tmp_path / "made.gguf", threads=1) as e,
    ):
        expected, found = exact.logits([1, 270, 280, 290]), e.logits([1, 270, 280, 290])
    assert np.corrcoef(expected.ravel(), found.ravel())[0, 1] > 0.995


def test_tensors_are_in_the_order_of_llama_quantize(tmp_path: Path) -> None:
    """By layer, those without a layer first, and by name; a layer's number is not text."""
    write_tiny(tmp_path / "source.gguf", Tiny(layers=11))
    quantize_file(tmp_path / "source.gguf", tmp_path / "made.gguf", "Q8_0")
    names = list(read_gguf(tmp_path / "made.gguf").tensors)
    assert names[:5] == [
        "output.weight", "output_norm.weight", "token_embd.weight",
        "blk.0.attn_k.weight", "blk.0.attn_norm.weight",
    ]  # fmt: skip
    layers = [int(name.split(".")[1]) for name in names[3:]]
    assert layers == sorted(layers)
    offsets = [tensor.offset for tensor in read_gguf(tmp_path / "made.gguf").tensors.values()]
    assert offsets == sorted(offsets)


def test_tensors_already_in_the_type_are_copied(source: Path, tmp_path: Path) -> None:
    quantize_file(source, tmp_path / "a.gguf", "Q8_0")
    quantize_file(tmp_path / "a.gguf", tmp_path / "b.gguf", "Q8_0")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_requantizing_needs_the_option(source: Path, tmp_path: Path) -> None:
    quantize_file(source, tmp_path / "a.gguf", "Q8_0")
    with pytest.raises(UnsupportedModelError, match=r"a\.gguf is already quantized .*is Q8_0"):
        quantize_file(tmp_path / "a.gguf", tmp_path / "b.gguf", "Q4_0")
    quantize_file(tmp_path / "a.gguf", tmp_path / "b.gguf", "Q4_0", requantize=True)
    assert read_gguf(tmp_path / "b.gguf").tensors["blk.0.attn_q.weight"].type == GGMLType.Q4_0


def test_overrides_apply(source: Path, tmp_path: Path) -> None:
    overrides = [Override.parse("ffn_down=Q6_K")]
    quantize_file(source, tmp_path / "made.gguf", "Q4_0", overrides=overrides)
    assert read_gguf(tmp_path / "made.gguf").tensors["blk.1.ffn_down.weight"].type.name == "Q6_K"


def test_progress_increases_to_the_total(source: Path, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    quantize_file(source, tmp_path / "made.gguf", "Q4_0", progress=lambda *step: steps.append(step))
    assert steps == sorted(steps)
    assert steps[-1][0] == steps[-1][1]
    assert len({total for _, total in steps}) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_nan_is_an_error_that_names_its_tensor(tmp_path: Path, value: float) -> None:
    weights = tiny_weights(WIDE)
    weights["blk.1.ffn_up.weight"][3, 5] = value
    path = write_tiny(tmp_path / "bad.gguf", WIDE, weights=weights)
    with pytest.raises(ModelFileError, match=r"blk\.1\.ffn_up\.weight: .*NaN or infinite"):
        quantize_file(path, tmp_path / "made.gguf", "Q4_K_M")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.gguf"]


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    weights = tiny_weights(WIDE)
    weights["output.weight"][0, 0] = np.nan
    path = write_tiny(tmp_path / "bad.gguf", WIDE, weights=weights)
    (tmp_path / "made.gguf").write_bytes(b"old")
    with pytest.raises(ModelFileError):
        quantize_file(path, tmp_path / "made.gguf", "Q4_0")
    assert (tmp_path / "made.gguf").read_bytes() == b"old"


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"type": "Q9"}, UnsupportedModelError, "unknown type 'Q9'"),
    ({"source": Path("/nowhere.gguf")}, ModelNotFoundError, "no model file"),
    ({"destination": Path("/nowhere/x.gguf")}, ModelFileError, "cannot write"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD)
def test_invalid_arguments_are_errors(
    source: Path, tmp_path: Path, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    given: dict[str, Any] = {
        "source": source,
        "destination": tmp_path / "made.gguf",
        "type": "Q4_0",
    } | change
    with pytest.raises(error, match=message):
        quantize_file(**given)


def test_a_file_is_not_overwritten_by_itself(source: Path) -> None:
    with pytest.raises(RequestError, match="is the input file"):
        quantize_file(source, source, "Q4_0")


def test_two_processes_never_write_the_same_file(source: Path, tmp_path: Path) -> None:
    with (tmp_path / ".made.gguf.partial").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ModelFileError, match="another process is writing it"):
            quantize_file(source, tmp_path / "made.gguf", "Q4_0")
    quantize_file(source, tmp_path / "made.gguf", "Q4_0")  # what a dead process left is taken over
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made.gguf"]


def test_free_space_is_checked_before_anything_is_computed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(DiskFullError, match=r"needs \d+\.\d MB, 0\.0 MB are free"):
        quantize_file(source, tmp_path / "made.gguf", "Q4_0")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_the_old_file_or_the_new(source: Path, tmp_path: Path) -> None:
    kill_at_random(
        f"""
        from pathlib import Path
        from tampu.convert.quantize import quantize_file
        import tampu.ml.library
        source, made = Path({str(source)!r}), Path({str(tmp_path / "made.gguf")!r})
        quantize_file(source, made, "Q4_K_M", threads=1)
        new = made.read_bytes()
        made.write_bytes(b"old")
        def work():
            quantize_file(source, made, "Q4_K_M", threads=1)
        def check():
            assert made.read_bytes() in (b"old", new)
            assert len(list(made.parent.iterdir())) <= 2  # and the part of a file, for the next
            made.write_bytes(b"old")
        """,
        times=25,
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made.gguf"]


def test_the_quantize_command(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = str(tmp_path / "made.gguf")
    assert run(["quantize", str(source), made, "q4_k_m", "--tensor-type", "attn_v=Q8_0"]) == 0
    assert read_gguf(made).tensors["blk.0.attn_v.weight"].type == GGMLType.Q8_0
    assert "made.gguf:" in capsys.readouterr().out
    assert run(["quantize", str(source), made, "Q9"]) == 2
    assert capsys.readouterr().err.startswith("Error: unknown type 'Q9'")


@pytest.mark.slow
def test_a_full_disk_at_any_write_leaves_the_old_file(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "in.gguf", Tiny(embedding=32, layers=1))
    made = tmp_path / "made.gguf"
    made.write_bytes(b"old")
    whole = tmp_path / "whole"
    quantize_file(source, whole, "Q8_0")

    def check() -> None:
        assert made.read_bytes() in (b"old", whole.read_bytes())
        assert {path.name for path in tmp_path.iterdir()} == {"in.gguf", "made.gguf", "whole"}

    writes = fail_at_each_write(lambda: quantize_file(source, made, "Q8_0", threads=1), check)
    assert writes > len(read_gguf(source).tensors)
    assert made.read_bytes() == whole.read_bytes()
