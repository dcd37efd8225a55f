"""Embeddings of images, sounds, and texts with both equal those of transformers."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from support.checkpoints.encoders import MEDIA
from support.hearing import HEARINGS
from support.laboratory import Laboratory
from support.seeing import picture
from support.sights import SIGHTS
from support.sounds import sound, wav
from tokenizers import Tokenizer
from transformers import Gemma4AudioFeatureExtractor

from tampu import Engine
from tampu.chat.media import MediaFile
from tampu.convert import convert, plan_conversion
from tampu.engine.prompts import TextPrompt
from tampu.engine.requests import Embed
from tampu.errors import ContextLengthError, RequestError
from tampu.ml.gguf import read_gguf
from tampu.ml.vectors import unit_vectors
from tampu.runner.encoder_cache import EncoderCache

pytestmark = pytest.mark.parity

LIMIT = 2e-3  # ggml's CPU code takes GELU from a table in half precision
Part: TypeAlias = str | npt.NDArray[Any]
SEEN, HEARD = picture(100, 150), sound(1.5)
INPUTS: dict[str, list[Part]] = {
    "picture": [SEEN],
    "pictures": [SEEN, picture(40, 90, seed=1)],
    "sound": [HEARD],
    "sound that is shorter than a token": [sound(0.03)],
    "text, picture, text, sound, text": ["The class ", SEEN, " parses ", HEARD, "arguments."],
    "sound, text, picture": [sound(2.2, 1), "self.", picture(230, 30)],
}


def with_marks(model: Any, parts: list[Part]) -> tuple[str, dict[str, Any]]:
    """Return the text of transformers' processor, and the arguments of images and sounds."""
    images = [
        Image.fromarray(part) for part in parts if not isinstance(part, str) and part.ndim > 1
    ]
    sounds = [part for part in parts if not isinstance(part, str) and part.ndim == 1]
    inputs: dict[str, Any] = {}
    seen: list[int] = []
    heard: list[int] = []
    if images:
        inputs |= SIGHTS["gemma4_seeing"].process(images)
        places = inputs["pixel_values"], inputs["image_position_ids"]
        seen = [len(rows) for rows in model.get_image_features(*places).pooler_output]
    if sounds:
        features = HEARINGS["gemma4_small_hearing"].process(sounds)
        heard = model.get_audio_features(**features).attention_mask.sum(-1).tolist()
        inputs |= features
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
        elif part.ndim > 1:
            text += f"<|image>{'<|image|>' * seen.pop(0)}<image|>"
        else:
            text += f"<|audio>{'<|audio|>' * heard.pop(0)}<audio|>"
    return text, inputs


def states_of(laboratory: Laboratory, text: str, inputs: dict[str, Any]) -> npt.NDArray[np.float32]:
    tokenizer = Tokenizer.from_file(str(laboratory.checkpoint(MEDIA) / "tokenizer.json"))
    ids = torch.tensor([tokenizer.encode(text).ids])
    found = laboratory.reference(MEDIA)(input_ids=ids, **inputs).last_hidden_state[0]
    states: npt.NDArray[np.float32] = found.float().numpy()
    return states


def reference(laboratory: Laboratory, parts: list[Part]) -> npt.NDArray[np.float32]:
    """Return transformers' embedding (1, features): the mean of the states, of length 1."""
    with torch.no_grad():
        states = states_of(laboratory, *with_marks(laboratory.reference(MEDIA), parts))
    return unit_vectors(states.mean(0, keepdims=True))


def prompt(parts: list[Part]) -> TextPrompt:
    return TextPrompt.of_parts(
        part if isinstance(part, str) else MediaFile(part, f"part {index}")
        for index, part in enumerate(parts)
    )


@pytest.mark.parametrize("what", INPUTS)
def test_embeddings_of_images_and_sounds(laboratory: Laboratory, what: str) -> None:
    with laboratory.engine(MEDIA) as engine:
        ours = engine.ask(Embed((prompt(INPUTS[what]),))).array()
    expected = reference(laboratory, INPUTS[what])
    laboratory.compare(MEDIA, ours, expected, f"F32, {what}", LIMIT)


def test_several_inputs_in_one_request_are_those_alone(laboratory: Laboratory) -> None:
    """Texts without media among them; in batches together."""
    inputs: list[list[Part]] = [["The class."], *INPUTS.values(), ["x"]]
    path = laboratory.file(MEDIA)
    options: dict[str, Any] = {"context": 512, "threads": 1, "cache_type": "f32"}
    with Engine.load(path, slots=4, **options) as engine:
        together = engine.ask(Embed(tuple(map(prompt, inputs)))).array()
        alone = [engine.ask(Embed((prompt(parts),))).array() for parts in inputs]
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-5)


@pytest.mark.slow
def test_a_long_sound_is_encoded_in_windows_of_thirty_seconds(laboratory: Laboratory) -> None:
    """transformers' processor drops what comes after thirty seconds; its model takes windows."""
    heard = sound(31.0)
    found = Gemma4AudioFeatureExtractor()([heard], truncation=False, return_tensors="pt")
    frames, mask = (found[name][0] for name in ("input_features", "input_features_mask"))
    windows, masks = (torch.split(each, 3000) for each in (frames, mask))
    inputs = {
        "input_features": torch.nn.utils.rnn.pad_sequence([*windows], batch_first=True),
        "input_features_mask": torch.nn.utils.rnn.pad_sequence([*masks], batch_first=True),
    }
    with torch.no_grad():
        model: Any = laboratory.reference(MEDIA)
        count = int(model.get_audio_features(**inputs).attention_mask.sum())
        text = f"<|audio>{'<|audio|>' * count}<audio|>"
        expected = states_of(laboratory, text, inputs).mean(0, keepdims=True)
    with Engine.load(laboratory.file(MEDIA), context=1024, threads=1, cache_type="f32") as engine:
        ours = engine.embed([{"audio": [heard]}])
    laboratory.compare(MEDIA, ours, unit_vectors(expected), "F32, long sound", LIMIT)


def test_python_takes_files_and_arrays(laboratory: Laboratory) -> None:
    """Images come first, then sounds, then the text."""
    file = io.BytesIO()
    Image.fromarray(SEEN).save(file, "PNG")
    samples = np.round(HEARD * 32767).clip(-32768, 32767) / 32768
    with laboratory.engine(MEDIA) as engine:
        given = engine.embed(
            [
                {"content": "What?", "images": [file.getvalue()], "audio": [wav(HEARD)]},
                {"content": "What?", "images": [SEEN], "audio": [samples]},
            ]
        )
        begin, end = engine.tokenizer.around
        items = [engine.prepare_file(SEEN), *engine.tokenizer.encode("x", add_special=False)]
        as_tokens, as_text = engine.embed(
            [[*begin, *items, *end], {"images": [SEEN], "content": "x"}]
        )
    expected = reference(laboratory, [SEEN, HEARD, "What?"])
    np.testing.assert_allclose(given, np.concatenate([expected] * 2), atol=2e-3)
    np.testing.assert_allclose(as_tokens, as_text, atol=1e-6)


def test_a_picture_is_encoded_once(laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    keep = EncoderCache.keep

    def counting(self: EncoderCache, number: int, embedding: npt.NDArray[np.float32]) -> None:
        encoded.append(number)
        keep(self, number, embedding)

    monkeypatch.setattr(EncoderCache, "keep", counting)
    with laboratory.engine(MEDIA) as engine:
        engine.embed([{"images": [SEEN]}, {"images": [SEEN], "content": "x"}])
        engine.embed([{"images": [SEEN.copy(), picture(40, 90)]}])
    assert len(encoded) == 2


def test_what_a_picture_gives_is_captured(laboratory: Laboratory) -> None:
    points = ["image_hidden_states", "hidden_states:0"]
    with laboratory.engine(MEDIA) as engine:
        given = [{"images": [SEEN], "content": "What?"}]
        found = engine.embed(given, capture={"points": points})
    [captured] = found.captured
    rows, [states] = captured["image_hidden_states"][0], captured["hidden_states"].values()
    assert rows.shape[0] < states.shape[0]
    np.testing.assert_allclose(states[2 : 2 + len(rows)], rows, atol=1e-6)  # after two marks


def test_a_prompt_of_the_model_comes_before_images(laboratory: Laboratory, tmp_path: Path) -> None:
    folder = shutil.copytree(laboratory.checkpoint(MEDIA), tmp_path / "checkpoint")
    settings = {"prompts": {"query": "task: search | query: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    convert(folder, tmp_path / "model.gguf", "F32")
    options: dict[str, Any] = {"context": 256, "threads": 1, "cache_type": "f32"}
    with Engine.load(tmp_path / "model.gguf", **options) as engine:
        ours = engine.embed([{"images": [SEEN]}], prompt="query")
    expected = reference(laboratory, ["task: search | query: ", SEEN])
    np.testing.assert_allclose(ours, expected, atol=LIMIT)


def test_a_projector_file_sees_and_hears_the_same(laboratory: Laboratory, tmp_path: Path) -> None:
    """In llama.cpp's layout, whose names of types are those of Gemma 4's encoders."""
    text, mmproj = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    convert(laboratory.checkpoint(MEDIA), text, "F32", mmproj=mmproj)
    metadata = read_gguf(mmproj).metadata
    assert metadata.architecture == "clip"
    assert metadata.string("vision.projector_type") == "gemma4v"
    assert metadata.string("audio.projector_type") == "gemma4a"
    parts = INPUTS["text, picture, text, sound, text"]
    with laboratory.engine(MEDIA) as whole:
        expected = whole.ask(Embed((prompt(parts),))).array()
    options: dict[str, Any] = {"context": 256, "threads": 1, "cache_type": "f32"}
    options["flash_attention"] = False
    with Engine.load(text, projector=mmproj, **options) as apart:
        found = apart.ask(Embed((prompt(parts),))).array()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with Engine.load(text, **options) as blind:
        with pytest.raises(RequestError, match=r"texts\[0\].images\[0\]: .* has no vision encoder"):
            blind.embed([{"images": [SEEN]}])
        with pytest.raises(RequestError, match=r"texts\[1\].audio\[0\]: .* has no audio encoder"):
            blind.embed(["x", {"audio": [HEARD]}])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"images": [b"\x89PNG\r\n\x1a\n" + bytes(50)]}, r"texts\[1\].images\[0\]: "),
        ({"audio": [wav(HEARD)[:20]]}, r"texts\[1\].audio\[0\]: "),
        ({"audio": [np.zeros(601 * 16_000, np.float32)]}, r"texts\[1\].audio\[0\]: .*600"),
        ({"images": SEEN}, r"texts\[1\].images must be a list"),
        ({"image": [SEEN]}, r"texts\[1\].image is not known: an input has content, images, audio"),
        ({"images": [SEEN], "content": "a <__media__>"}, "must not have <__media__>"),
        ({}, r"texts\[1\].content is missing"),
        *(
            ({"audio": [samples]}, r"texts\[1\].audio\[0\] must be samples, float32, \(n,\), mono")
            for samples in (HEARD[:0], HEARD[None], HEARD.astype(np.int16))
        ),
        ({"images": [HEARD[None]]}, r"texts\[1\].images\[0\] must be RGB pixels, uint8"),
    ],
)
def test_what_cannot_be_embedded_is_named(
    laboratory: Laboratory, given: dict[str, Any], message: str
) -> None:
    with laboratory.engine(MEDIA) as engine:
        with pytest.raises(RequestError, match=message):
            engine.embed(["x", given])
        assert engine.embed(["x"]).shape == (1, 192)
        assert engine.embed([]).shape == (0, 192)


def test_images_that_do_not_fit_the_context_are_not_cut(laboratory: Laboratory) -> None:
    pictures = [picture(100, 150, seed=seed) for seed in range(6)]
    with laboratory.engine(MEDIA) as engine:
        request = Embed((prompt([*pictures, "x"]),), truncate=True)
        with pytest.raises(ContextLengthError, match=r"input\[0\] is too large") as refused:
            engine.ask(request)
        assert "truncate" not in str(refused.value)
        with pytest.raises(ContextLengthError, match=r"texts\[1\] is too large"):
            engine.embed(["x", {"images": pictures}])
        with pytest.raises(RequestError, match="late_chunking is for texts alone"):
            engine.embed(["x", {"images": [SEEN]}], late_chunking=True)


def test_more_images_than_can_be_kept_at_once_are_refused(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are all in one batch: encoding them in turn would never end."""
    monkeypatch.setattr("tampu.runner.encoder_cache._MAX_KEPT", 2)
    pictures = [picture(12, 12, seed=seed) for seed in range(3)]
    with laboratory.engine(MEDIA) as engine:
        with pytest.raises(RequestError, match="3 images and parts of sounds, at most 2"):
            engine.embed([{"images": pictures}])
        assert engine.embed([{"images": [pictures[0]] * 3}]).shape == (1, 192)


@pytest.mark.parametrize("left_out", ["vision_config", "audio_config"])
def test_an_encoder_without_a_configuration_is_left_out(
    laboratory: Laboratory, tmp_path: Path, caplog: pytest.LogCaptureFixture, left_out: str
) -> None:
    """As transformers loads such a checkpoint."""
    folder = shutil.copytree(laboratory.checkpoint(MEDIA), tmp_path / "checkpoint")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, left_out: None}))
    plan = plan_conversion(folder)
    prefix, other = ("v.", "a.") if left_out == "vision_config" else ("a.", "v.")
    names = [tensor.name for tensor in plan.tensors]
    assert not any(name.startswith(prefix) for name in names)
    assert any(name.startswith(other) for name in names)
    assert "tensors of encoders that config.json does not have are left out" in caplog.text


@pytest.mark.slow
def test_every_weight_of_the_encoders_matters(laboratory: Laboratory) -> None:
    """Each weight that is zero moves transformers' embedding by more than we allow."""
    model: Any = laboratory.reference(MEDIA)
    parts = INPUTS["text, picture, text, sound, text"]
    expected = reference(laboratory, parts)
    unnoticed = []
    for name, weight in model.named_parameters():
        if name.startswith("language_model."):
            continue
        held = weight.detach().clone()
        with torch.no_grad():
            weight.zero_()
            moved = np.linalg.norm(reference(laboratory, parts) - expected)
            weight.copy_(held)
        if not moved > 2 * LIMIT:
            unnoticed.append(name)
    assert not unnoticed
