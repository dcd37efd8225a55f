"""From a file to a model: architectures, options, and tensors that are missing or too many."""

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.running import load_tiny
from support.tiny_model import Tiny, tiny_weights, write_tiny

from tampu import models
from tampu.errors import ModelFileError, UnsupportedModelError
from tampu.gguf_compat import read_model
from tampu.ml import Backend, RopeMode, Weights
from tampu.models import Architecture, architectures, bind_model
from tampu.models.gemma3 import Gemma3, Options
from tampu.models.llama import Llama
from tampu.nn import LayerShape, Model

GEMMA = Tiny(architecture="gemma3", tied=True)


@pytest.fixture
def bound(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Write a tiny model and bind it; its weights have no memory."""
    opened = []

    def bound(
        tiny: Tiny | None = None, weights: dict[str, npt.NDArray[np.float32]] | None = None
    ) -> Model:
        opened.append(Weights(read_model(write_tiny(tmp_path / "m.gguf", tiny, weights=weights))))
        return bind_model(opened[-1])

    yield bound
    for each in opened:
        each.close()


# Architectures


@pytest.mark.parametrize(
    ("name", "kind", "mode"),
    [
        ("llama", Llama, RopeMode.INTERLEAVED),
        ("qwen2", Llama, RopeMode.HALVES),
        ("qwen3", Llama, RopeMode.HALVES),
    ],
)
def test_a_file_becomes_the_class_of_its_architecture(
    bound: Callable[..., Any], name: str, kind: type[Llama], mode: RopeMode
) -> None:
    model = bound(Tiny(architecture=name))
    assert type(model) is kind
    assert model.options.rope_mode is mode


def test_every_architecture_that_is_listed_can_be_imported() -> None:
    for name, entry in architectures().items():
        assert entry.load().options_type is not None, name


def test_an_unknown_architecture_is_named(
    bound: Callable[..., Any],
) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        bound(Tiny(architecture="none-such"))
    assert str(caught.value) == (
        "architecture 'none-such' is not known; docs/models.md lists those that are; others need "
        "the engine llamacpp"
    )


def test_a_plug_in_adds_an_architecture(
    bound: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("none-such", "tampu.models.gemma3:Gemma3", "tampu.models")
    monkeypatch.setattr(models, "plug_ins", lambda group: [point] * (group == point.group))
    assert architectures()["none-such"] == Architecture(point.value)
    weights = tiny_weights(GEMMA)
    keys = {"attention.sliding_window": 8}
    model = bound(Tiny(architecture="none-such", tied=True, keys=keys), weights)
    assert type(model) is Gemma3


# Tensors


def test_missing_tensors_are_all_named(bound: Callable[..., Any]) -> None:
    weights = tiny_weights(Tiny())
    for name in ("output_norm.weight", "blk.1.ffn_up.weight"):
        del weights[name]
    with pytest.raises(
        ModelFileError, match=r"missing from the file: blk\.1\.ffn_up\.weight, output_norm\.weight"
    ):
        bound(Tiny(), weights)


def test_tensors_that_the_architecture_does_not_know_are_named(bound: Callable[..., Any]) -> None:
    weights = tiny_weights(Tiny(query_norms=True))
    weights["blk.0.attn_sinks.weight"] = weights["blk.0.attn_norm.weight"]
    with pytest.raises(
        ModelFileError, match=r"not known to the architecture: blk\.0\.attn_sinks\.weight"
    ):
        bound(Tiny(), weights)


def test_tensors_of_layers_beyond_the_count_are_unknown(bound: Callable[..., Any]) -> None:
    with pytest.raises(ModelFileError, match=r"not known to the architecture: blk\.1\."):
        bound(Tiny(layers=1), tiny_weights(Tiny(layers=2)))


def test_a_vision_tower_without_its_settings_is_an_error(bound: Callable[..., Any]) -> None:
    weights = tiny_weights(GEMMA)
    weights["v.patch_embedding.weight"] = weights["output_norm.weight"]
    with pytest.raises(ModelFileError, match=r"vision\.\w+': is missing"):
        bound(GEMMA, weights)


def test_a_projector_of_another_model_is_refused(tmp_path: Path) -> None:
    other = Tiny(architecture="clip", keys={"projector_type": "gemma3"})
    with (
        Weights(read_model(write_tiny(tmp_path / "a.gguf"))) as text,
        Weights(read_model(write_tiny(tmp_path / "b.gguf", other))) as projector,
        pytest.raises(UnsupportedModelError) as caught,
    ):
        bind_model(text, projector)
    assert str(caught.value) == (
        "Llama does not support a projector of type 'gemma3'; supported: mlp, idefics3, internvl, "
        "pixtral"
    )


def test_a_projector_alone_is_named_with_its_use(bound: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"is a projector \(mmproj\).*second FROM"):
        bound(Tiny(architecture="clip"))


def test_a_projector_for_a_file_with_encoders_is_refused(tmp_path: Path) -> None:
    hears = tiny_weights(Tiny()) | {"a.blk.0.ln1.weight": np.ones(4, np.float32)}
    sees = tiny_weights(GEMMA) | {"v.blk.0.ln1.weight": np.ones(4, np.float32)}
    clip = Tiny(architecture="clip")
    with (
        Weights(read_model(write_tiny(tmp_path / "a.gguf", GEMMA, weights=sees))) as text,
        Weights(read_model(write_tiny(tmp_path / "b.gguf", clip, weights=hears))) as projector,
        pytest.raises(UnsupportedModelError, match=r"own file has its encoders \(vision\)"),
    ):
        bind_model(text, projector)


# Options


@pytest.mark.seed("S25")
@pytest.mark.parametrize(
    ("tiny", "kv_heads", "head_dim"),
    [
        (Tiny(), 2, 16),
        (Tiny(keys={"attention.key_length": None}, head_dim=8), 2, 8),
        (Tiny(keys={"attention.head_count_kv": None}, kv_heads=4), 4, 16),
    ],
)
def test_missing_options_are_derived(
    bound: Callable[..., Any], tiny: Tiny, kv_heads: int, head_dim: int
) -> None:
    model = bound(tiny)
    assert model.cache_shapes() == [LayerShape(kv_heads, head_dim)] * 2


def test_a_layers_window_is_passed_to_the_cache(bound: Callable[..., Any]) -> None:
    model = bound(Tiny(keys={"attention.sliding_window": 7}))
    assert model.cache_shapes() == [LayerShape(2, 16, 7)] * 2


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("block_count", None, "is missing"),
        ("block_count", 0, "0 is not 1 to 1024"),
        ("block_count", 2000, "2000 is not 1 to 1024"),
        ("attention.head_count", 0, "0 is not"),
        ("attention.layer_norm_rms_epsilon", float("nan"), "nan is not"),
        ("rope.freq_base", -1.0, "-1.0 is not"),
        ("rope.scaling.factor", float("inf"), "inf is not a positive number"),
    ],
)
def test_an_invalid_option_is_refused_with_its_key(
    bound: Callable[..., Any], key: str, value: float | None, reason: str
) -> None:
    with pytest.raises(ModelFileError, match=reason) as caught:
        bound(Tiny(keys={key: value}))
    assert caught.value.field == f"key 'llama.{key}'"


# Gemma 3


@pytest.mark.parametrize(
    ("period", "pattern"),
    [(6, "nnnnngnnnnng"), (2, "ngngngngngng"), (1, "gggggggggggg"), (13, "nnnnnnnnnnnn")],
)
def test_the_period_of_gemmas_global_layers_is_the_files(
    bound: Callable[..., Any], period: int, pattern: str
) -> None:
    tiny = Tiny(
        architecture="gemma3",
        layers=12,
        tied=True,
        keys={"attention.sliding_window_pattern": period},
    )
    windows = [shape.window for shape in bound(tiny).cache_shapes()]
    assert "".join("g" if window is None else "n" for window in windows) == pattern
    assert set(windows) <= {None, 8}


@pytest.mark.parametrize(
    ("changes", "scale"),
    [
        ({}, 256**-0.5),
        ({"key_length": 128}, 128**-0.5),
        ({"given_scale": 0.25}, 0.25),
        ({"layers": 62, "embedding": 5376, "heads": 32, "key_length": 128}, 168**-0.5),
        ({"layers": 62, "given_scale": 0.25}, 0.25),
    ],
)
def test_the_scale_of_gemmas_scores_is_the_files_or_follows_from_the_heads(
    changes: dict[str, Any], scale: float
) -> None:
    given = {
        "layers": 26,
        "embedding": 1152,
        "context": 8192,
        "heads": 4,
        "given_kv_heads": 1,
        "key_length": 256,
        "epsilon": 1e-6,
        "window": 512,
        "period": 6,
        "given_scale": None,
        "rope_base": 1e6,
        "rope_base_swa": 1e4,
        "rope_scaling": None,
        "rope_dimensions": None,
        "logit_cap": None,
    }
    assert Options(**{**given, **changes}).shape.scale == pytest.approx(scale)


@pytest.mark.seed("S35", "S36")
def test_gemma_caps_its_logits_only_if_the_file_says_so(backend: Backend, tmp_path: Path) -> None:
    found = {}
    for cap in (None, 10.0):
        tiny = Tiny(architecture="gemma3", tied=True, keys={"final_logit_softcapping": cap})
        model = load_tiny(backend, tmp_path, tiny)
        found[cap] = model.logits([1, 259, 286, 264, 7])
        model.close()
    assert abs(found[None]).max() > 10
    assert abs(found[10.0]).max() <= 10
    assert (found[None].argmax(-1) == found[10.0].argmax(-1)).all()
