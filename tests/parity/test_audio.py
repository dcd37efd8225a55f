"""What models hear equals what transformers' models hear: texts with sounds, and images too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from support.checkpoints import HEARING, RECIPES, load_reference
from support.hearing import HEARINGS
from support.laboratory import Laboratory, exact, in_depth
from support.seeing import Seer, picture
from support.sights import SIGHTS
from support.sounds import sound, wav

from tampu import Engine
from tampu.convert import convert
from tampu.errors import RequestError
from tampu.ml import Backend
from tampu.runner.layout import NumberedMedia

pytestmark = pytest.mark.parity

NAMES = list(HEARING)
TOWERS = [name for name in NAMES if name != "gemma4_unified_hearing"]  # it has none
TEXT = [40, 57, 200, 310, 42, 99]


def flat(prompt: list[Any]) -> list[int]:
    """Return the tokens of a prompt as the model has them."""
    parts = ([each] if isinstance(each, int) else list(each.tokens) for each in prompt)
    return [token for part in parts for token in part]


@pytest.mark.parametrize("name", TOWERS)
@pytest.mark.parametrize("seconds", [1.5, pytest.param(5.3, marks=pytest.mark.slow)])
def test_the_embedding_of_a_sound(
    laboratory: Laboratory, backend: Backend, name: str, seconds: float
) -> None:
    heard = sound(seconds)
    with torch.no_grad():
        expected = HEARINGS[name].embed(laboratory.reference(name), heard)
    for type_, most in (("F32", 1e-5), ("F16", 3e-3)):
        seer = Seer(backend, laboratory.file(name, type_))
        ours = seer.hear(heard)
        seer.close()
        laboratory.compare(name, ours, expected, f"{type_}, embedding of a sound", most)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOWERS)
def test_every_weight_of_an_encoder_matters(laboratory: Laboratory, name: str) -> None:
    """But for biases of keys, which change no softmax, and marks that transformers never reads."""
    model, heard = load_reference(name, laboratory.checkpoint(name)), sound(0.7)
    with torch.no_grad():
        expected = HEARINGS[name].embed(model, heard)
        for part, weight in model.named_parameters():
            if "audio" not in part and "multi_modal_projector" not in part:
                continue
            values = weight.clone()
            weight.zero_()
            moved = np.abs(HEARINGS[name].embed(model, heard) - expected).max()
            weight.copy_(values)
            assert moved > 1e-3 or part.endswith(("k_proj.bias", "bos_eos_token.weight")), part


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("chunk", "seconds"),
    [
        (None, (1.5, 0.31, 0.03)),
        (40, (9.7,)),
        pytest.param(1, (1.5, 0.31, 0.03), marks=pytest.mark.slow),
        pytest.param(1, (9.7,), marks=pytest.mark.slow),
        pytest.param(None, (9.7,), marks=pytest.mark.slow),
    ],
)
def test_logits_of_a_text_with_sounds(
    laboratory: Laboratory, name: str, chunk: int | None, seconds: tuple[float, ...]
) -> None:
    """One sound is longer than what is encoded at once, one shorter than a token."""
    sounds = [sound(length, seed) for seed, length in enumerate(seconds)]
    with laboratory.engine(name) as engine:
        prompt: list[Any] = [1, 33]
        for each in sounds:
            prompt += [engine.prepare_file(each), *TEXT]
        ours = engine.logits(prompt, chunk=chunk)
    with torch.no_grad():
        expected = HEARINGS[name].read(laboratory.reference(name), flat(prompt), sounds)
    laboratory.compare(name, ours, expected, f"F32, text with {len(sounds)} sounds", exact(name))


def test_logits_of_a_text_with_a_sound_between_two_images(laboratory: Laboratory) -> None:
    name = "gemma4_unified_hearing"
    images, heard = [picture(100, 150), picture(90, 60, seed=1)], sound(1.3)
    sight, hearing = SIGHTS["gemma4_unified_seeing"], HEARINGS[name]
    with laboratory.engine(name) as engine:
        first, second = (engine.prepare_file(image) for image in images)
        prompt: list[Any] = [1, first, engine.prepare_file(heard), *TEXT, second, *TEXT]
        ours = engine.logits(prompt)
    # Placeholders are all <pad>: the reference is told which are whose.
    tokens = np.array(flat(prompt))
    within = np.cumsum(tokens == 9) > np.cumsum(tokens == 10)
    tokens[within & (tokens == 0)] = 11
    model = laboratory.reference(name)
    beside = hearing.process([heard])
    seen = sight.process([Image.fromarray(image) for image in images])
    with torch.no_grad():
        ids = torch.from_numpy(np.where(tokens == 0, 8, tokens))[None]
        marks = (ids == 8).long()
        masks = model.create_masks_for_generate(
            model.config,
            model.get_input_embeddings()(ids),
            None,
            None,
            torch.arange(len(tokens))[None],
            mm_token_type_ids=marks,
        )
        found = model(
            input_ids=ids, attention_mask=masks, mm_token_type_ids=marks, **beside, **seen
        )
    expected: npt.NDArray[np.float32] = found.logits[0].float().numpy()
    laboratory.compare(name, ours, expected, "F32, text with 2 images and a sound", exact(name))


@pytest.mark.parametrize(
    ("name", "sight"), [("qwen25_omni", "qwen25vl"), ("qwen3_omni", "qwen3vlmoe")]
)
def test_logits_of_a_text_with_sounds_and_images(
    laboratory: Laboratory, name: str, sight: str
) -> None:
    """Two of each, in turn: an image has a place in time, and rows and columns beside it."""
    images, sounds = [picture(100, 150), picture(90, 60, seed=1)], [sound(2.3), sound(0.8, 1)]
    with laboratory.engine(name) as engine:
        prompt: list[Any] = [1, 33]
        for image, heard in zip(images, sounds, strict=True):
            prompt += [engine.prepare_file(image), *TEXT, engine.prepare_file(heard), *TEXT]
        ours = engine.logits(prompt)
    seen = SIGHTS[sight].process([Image.fromarray(image) for image in images])
    ids = torch.tensor([flat(prompt)])
    with torch.no_grad():
        found = laboratory.reference(name)(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            **HEARINGS[name].process(sounds),
            **seen,
        )
    expected: npt.NDArray[np.float32] = found.logits[0].float().numpy()
    limit = 2e-3 if RECIPES[name].approximate_tower else 1e-5
    laboratory.compare(name, ours, expected, "F32, text with 2 images and 2 sounds", limit)


@pytest.mark.parametrize("name", NAMES)
def test_a_projector_file_hears_the_same(laboratory: Laboratory, tmp_path: Path, name: str) -> None:
    """In llama.cpp's layout: the text in one file, all encoders in another."""
    text, mmproj = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    convert(laboratory.checkpoint(name), text, "F32", mmproj=mmproj)
    heard = sound(2.2)
    with laboratory.engine(name) as whole:
        expected = whole.logits([1, whole.prepare_file(heard), *TEXT])
    plain: dict[str, Any] = {"cache_type": "f32", "flash_attention": False}
    with Engine.load(text, projector=mmproj, context=256, **plain) as apart:
        found = apart.logits([1, apart.prepare_file(heard), *TEXT])
    assert np.abs(found - expected).max() <= 1e-4


@pytest.mark.parametrize("name", in_depth(NAMES, ("gemma4_small_hearing", "qwen25_omni")))
def test_a_chat_hears_a_file_and_its_prefix_is_found_again(
    laboratory: Laboratory, name: str
) -> None:
    """The same beginning of a sound that has grown is neither encoded nor computed again."""
    samples = sound(8.0)
    with laboratory.engine(name) as engine:
        short, long = (engine.prepare_audio(wav(samples[:end])) for end in (7 * 16_000, 8 * 16_000))
        first, second = (
            [item.number for item in each.items if isinstance(item, NumberedMedia)]
            for each in (short, long)
        )
        assert first[:-1] == second[: len(first) - 1]
        assert (len(second) > 1) == (name != "gemma4_small_hearing")  # whose windows have 30 s
        message = {"role": "user", "content": "What is said?", "audio": [wav(samples)]}
        said = engine.chat([message], max_tokens=4, temperature=0)
        again = engine.chat([message], max_tokens=4, temperature=0)
        assert said.usage.prompt_tokens > len(long.tokens)
        assert again.text == said.text
        assert again.usage.cached_tokens >= said.usage.prompt_tokens - 1


def test_a_model_without_audio_encoder_says_so(laboratory: Laboratory) -> None:
    with (
        laboratory.engine("gemma4_unified_seeing") as engine,
        pytest.raises(RequestError, match="takes no audio: it has no audio encoder; choose a"),
    ):
        engine.prepare_file(wav(sound(1.0)))
