"""Gemma 4: what is computed for a text, and what a file may not say of its vision encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.running import TinyModel
from support.tiny_gemma4 import gemma4_weights, tiny_gemma4
from support.tiny_model import Floats, write_tiny

from tampu import nn
from tampu.engine.engine import Engine
from tampu.errors import ModelFileError
from tampu.ml import Backend, GGMLType
from tampu.ml.library import gg
from tampu.ml.metadata import Metadata
from tampu.models.gemma4_vision import EmbedderOptions
from tampu.nn import Batch

PATCH, POOL, WIDTH = 4, 3, 32
VISION: dict[str, Any] = {
    "block_count": 1,
    "embedding_length": WIDTH,
    "feed_forward_length": WIDTH,
    "attention.head_count": 2,
    "patch_size": PATCH,
    "projector.scale_factor": POOL,
    "max_pixels": 6 * (PATCH * POOL) ** 2,
}
POSITIONS = 6 * POOL


def vision_weights() -> dict[str, Floats]:
    """Return the weights of a small encoder, by their names in a file."""
    random = np.random.default_rng(1)

    def drawn(*shape: int) -> Floats:
        return (random.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32)

    layer = {f"{name}.weight": np.ones(WIDTH, np.float32) for name in ("ln1", "ln2")}
    layer |= {f"{name}_post_norm.weight": np.ones(WIDTH, np.float32) for name in ("attn", "ffn")}
    layer |= {f"attn_{part}_norm.weight": np.ones(WIDTH // 2, np.float32) for part in "qk"}
    names = ("attn_q", "attn_k", "attn_v", "attn_out", "ffn_gate", "ffn_up", "ffn_down")
    layer |= {f"{name}.weight": drawn(WIDTH, WIDTH) for name in names}
    layer |= {"attn_q.input_max": np.ones(1, np.float32)}
    return {
        "v.patch_embd.weight": drawn(WIDTH, 3, PATCH, PATCH),
        "v.position_embd.weight": drawn(2, POSITIONS, WIDTH),
        "mm.input_projection.weight": drawn(tiny_gemma4().embedding, WIDTH),
        **{f"v.blk.0.{name}": values for name, values in layer.items()},
    }


def write_seeing(path: Path, weights: dict[str, Floats], **keys: Any) -> Path:
    """Write a file with text and images."""
    stated = {f"vision.{name}": value for name, value in (VISION | keys).items()}
    tiny = tiny_gemma4(**stated)
    tokens = ["<|image>", "<image|>", "<pad>"]
    return write_tiny(path, tiny, weights=gemma4_weights() | weights, pieces=tokens)


def test_layers_that_share_keys_compute_only_the_tokens_whose_logits_are_wanted(
    tmp_path: Path, backend: Backend
) -> None:
    path = write_tiny(tmp_path / "a.gguf", tiny_gemma4(), weights=gemma4_weights())
    loaded = TinyModel(backend, path)
    for wanted in (1, 6):
        context = backend.context()
        tokens, positions = (context.input(each, (6,), GGMLType.I32) for each in "tp")
        outputs = context.input("o", (wanted,), GGMLType.I32)
        graph = loaded.cache.build(context, 6, next(loaded.cache.views_by_fill(6)))
        hidden = loaded.model.hidden(Batch(tokens, positions, outputs), graph.layers)
        context.output(loaded.model.head(hidden))
        nodes = [
            gg.ggml_graph_node(context.graph, index).contents
            for index in range(gg.ggml_graph_n_nodes(context.graph))
        ]
        rows = {
            source.contents.name.decode(): int(node.ne[1])
            for node in nodes
            for source in node.src
            if source
        }
        assert rows["blk.1.ffn_up.weight"] == 6
        assert rows["blk.2.attn_q.weight"] == rows["blk.3.ffn_up.weight"] == wanted
        context.close()
    loaded.close()


def test_the_last_tokens_logits_are_those_of_the_whole_text(tmp_path: Path) -> None:
    """Alone, and after a prefix that is in the cache."""
    path = write_tiny(tmp_path / "a.gguf", tiny_gemma4(), weights=gemma4_weights())
    text = [1, 5, 9, 259, 286, 264, 7, 7, 300, 12, 286, 264, 299, 3, 310]
    with Engine.load(path, context=64, threads=1, cache_type="f32") as engine:
        whole = engine.logits(text)[-1]
        for prompt in (text, text):
            found = engine.generate(prompt, max_tokens=1, temperature=0.0)
            assert found.tokens[0] == int(np.argmax(whole))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"v.position_embd.weight": (2, POSITIONS - 1, WIDTH)}, "position_embd.*two tables of 18"),
        ({"v.position_embd.weight": (POSITIONS, WIDTH)}, "position_embd.*two tables of 18"),
        ({"mm.input_projection.weight": (WIDTH + 32, WIDTH)}, "input_projection.*gives"),
        ({"v.blk.0.attn_q.input_max": (2,)}, r"attn_q\.input_max.*not one number"),
        ({"v.blk.0.attn_q_norm.weight": (WIDTH,)}, "attn_q_norm"),
        ({"v.blk.0.ln2.weight": None}, r"missing.*v\.blk\.0\.ln2"),
        ({"v.std_bias": (WIDTH + 1,), "v.std_scale": (WIDTH,)}, "std_bias"),
    ],
)
def test_an_encoder_that_does_not_fit_names_the_tensor(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    weights = vision_weights()
    for name, shape in change.items():
        weights[name] = np.ones(shape or 1, np.float32)
        if shape is None:
            del weights[name]
    path = write_seeing(tmp_path / "a.gguf", weights)
    with pytest.raises(ModelFileError, match=message) as caught:
        Engine.load(path, context=64, threads=1).close()
    assert "\n" not in str(caught.value)


def test_images_of_less_than_a_token_are_refused(tmp_path: Path) -> None:
    path = write_seeing(tmp_path / "a.gguf", vision_weights(), max_pixels=143)
    with pytest.raises(ModelFileError, match=r"vision\.max_pixels.*143 is less than one square"):
        Engine.load(path, context=64, threads=1).close()


def test_a_file_with_encoders_of_images_and_audio_says_that_it_hears_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = vision_weights() | {"a.blk.0.ln1.weight": np.ones(8, np.float32)}
    weights["mm.a.input_projection.weight"] = np.ones((8, 8), np.float32)
    path = write_seeing(tmp_path / "a.gguf", weights)
    with Engine.load(path, context=64, threads=1) as engine:
        assert engine.prepare_image(np.zeros((30, 20, 3), np.uint8)).item.rows == 6
    said = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert said == ["a.gguf has an encoder of audio, which is not supported: left out"]


def test_images_of_models_with_inputs_of_each_layer_are_causal() -> None:
    def read(features: int) -> EmbedderOptions:
        keys = {"embedding_length": 64, "embedding_length_per_layer_input": features}
        stated: dict[str, Any] = {f"gemma4.{name}": value for name, value in keys.items()}
        metadata = Metadata({"general.architecture": "gemma4", **stated})
        return nn.read_options(EmbedderOptions, metadata, {}, metadata)

    assert read(0).is_bidirectional
    assert not read(256).is_bidirectional
    assert read(0).max_tokens == 280
