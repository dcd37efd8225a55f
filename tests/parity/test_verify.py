"""`tampu verify`: the first token, layer and part in which a file is not its checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.laboratory import Laboratory
from support.observing import observed_points

from tampu import Verification, verify
from tampu.engine.engine import Engine
from tampu.errors import ModelNotFoundError, RequestError
from tampu.evaluation.verification import TEXT
from tests.cli.conftest import Run, run

__all__ = ["run"]  # the fixture

pytestmark = pytest.mark.parity

NAME = "llama_rope_llama3"
LAYER = "model.layers.1."


def changed(laboratory: Laboratory, folder: Path, weight: str) -> Path:
    """Return a copy of the checkpoint in which one weight is another."""
    copy = shutil.copytree(laboratory.checkpoint(NAME), folder / "changed")
    path = copy / "model.safetensors"
    weights = load_file(path)
    weights[weight] = weights[weight] * np.float32(1.5)
    save_file(weights, path, {"format": "pt"})
    return copy


def test_a_file_is_its_checkpoint(laboratory: Laboratory) -> None:
    found = verify(laboratory.file(NAME), laboratory.checkpoint(NAME), threads=1)
    assert found.is_same
    assert (found.token_difference, found.first) == (None, None)
    assert max(part.error for part in found.parts) == 0.0
    layers = len({part.part.partition(":")[2] for part in found.parts[:-2]})
    kinds = (
        "hidden_states", "attentions", "attention_outputs", "mlp_outputs", "layer_outputs"
    )  # fmt: skip
    expected = [f"{kind}:{layer}" for layer in range(layers) for kind in kinds]
    assert [part.part for part in found.parts] == [*expected, f"hidden_states:{layers}", "logits"]


@pytest.mark.parametrize(
    ("weight", "part"),
    [
        ("model.embed_tokens.weight", "hidden_states:0"),
        (f"{LAYER}self_attn.o_proj.weight", "attention_outputs:1"),
        (f"{LAYER}self_attn.q_proj.weight", "attentions:1"),
        (f"{LAYER}self_attn.v_proj.weight", "attention_outputs:1"),
        (f"{LAYER}mlp.down_proj.weight", "mlp_outputs:1"),
        (f"{LAYER}post_attention_layernorm.weight", "mlp_outputs:1"),
        ("lm_head.weight", "logits"),
    ],
)
def test_the_first_part_that_differs_is_named(
    laboratory: Laboratory, tmp_path: Path, weight: str, part: str
) -> None:
    found = verify(laboratory.file(NAME), changed(laboratory, tmp_path, weight), threads=1)
    assert found.token_difference is None
    assert found.first is not None
    assert found.first.part == part
    assert found.first.error > found.limit
    index = [each.part for each in found.parts].index(part)
    assert all(each.error == 0.0 for each in found.parts[:index])


def test_errors_are_those_of_the_values_of_transformers(
    laboratory: Laboratory, tmp_path: Path
) -> None:
    copy = changed(laboratory, tmp_path, f"{LAYER}mlp.down_proj.weight")
    found = verify(laboratory.file(NAME), copy, threads=1)
    with Engine.load(laboratory.file(NAME), threads=1) as engine:
        ids = engine.tokenize(TEXT)
    assert found.tokens == len(ids)
    ours = observed_points(laboratory.reference(NAME), ids)["mlp_outputs"][1]
    theirs = ours * np.float32(1.5)
    [part] = [each for each in found.parts if each.part == "mlp_outputs:1"]
    expected = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
    assert part.error == pytest.approx(float(expected), rel=1e-4)
    assert part.position == int(np.linalg.norm(ours - theirs, axis=-1).argmax())


def test_a_quantization_is_within_a_limit_of_its_own(laboratory: Laboratory) -> None:
    arguments = (laboratory.file(NAME, "Q8_0"), laboratory.checkpoint(NAME))
    strict = verify(*arguments, threads=1, limit=1e-4)
    assert strict.first is not None
    assert strict.first.part == "hidden_states:0"
    assert verify(*arguments, threads=1, limit=0.1).is_same


def test_the_first_token_that_differs_is_named(
    run: Run, laboratory: Laboratory, tmp_path: Path
) -> None:
    copy = shutil.copytree(laboratory.checkpoint(NAME), tmp_path / "changed")
    path = copy / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    ids = tokenizer["model"]["vocab"]
    ids["q"], ids["z"] = ids["z"], ids["q"]
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    found = verify(laboratory.file(NAME), copy, text="azq", threads=1)
    assert found.token_difference is not None
    assert found.token_difference.position == found.tokens - 2
    assert found.token_difference.file == (ids["q"], "z")
    assert found.token_difference.checkpoint == (ids["z"], "z")
    assert found.first is None  # both compute the checkpoint's tokens
    (tmp_path / "text").write_text("azq")
    given = "--threads", 1, "--text", tmp_path / "text"
    _, out, _ = run("verify", laboratory.file(NAME), "--against", copy, *given)
    assert f"{ids['q']} ('z') in the file, {ids['z']} ('z') in the checkpoint" in out


def test_the_command_prints_what_the_function_returns(
    run: Run, laboratory: Laboratory, tmp_path: Path
) -> None:
    file, same = laboratory.file(NAME), laboratory.checkpoint(NAME)
    code, out, _ = run("verify", file, "--against", same, "--threads", 1)
    assert code == 0
    assert out.endswith("no part is over 0.01\n")
    copy = changed(laboratory, tmp_path, f"{LAYER}mlp.down_proj.weight")
    found: Verification = verify(file, copy, threads=1)
    assert found.first is not None
    code, out, _ = run("verify", file, "--against", copy, "--threads", 1)
    assert code == 1
    assert out.endswith(f"first part over 0.01: mlp_outputs:1, {found.first.error:.2e}\n")
    code, out, _ = run("verify", file, "--against", copy, "--threads", 1, "--json")
    printed = json.loads(out)
    assert (code, printed["first"]["error"]) == (1, found.first.error)
    assert len(printed["parts"]) == len(found.parts)


def test_what_cannot_be_compared_is_refused_by_name(
    run: Run, laboratory: Laboratory, tmp_path: Path
) -> None:
    file, folder = laboratory.file(NAME), laboratory.checkpoint(NAME)
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    for arguments, message in (
        ((file, "--against", tmp_path / "none"), "none is not a folder with a checkpoint"),
        (("none.gguf", "--against", folder), "none.gguf"),
        ((file, "--against", folder, "--text", empty), "the text is empty"),
        ((file, "--against", folder, "--limit", 0), "limit must be more than 0"),
        ((file, "--against", laboratory.checkpoint("qwen3moe")), "have other layers: only one"),
    ):
        code, out, err = run("verify", *arguments, "--threads", 1)
        assert (code, out) == (2, ""), (arguments, err)
        assert message in err
        assert len(err.splitlines()) == 1
    with pytest.raises(RequestError, match="not a folder"):
        verify(file, file)
    with pytest.raises(ModelNotFoundError):
        verify("none.gguf", folder)
