"""A deterministic engine computes the same bits for a request, whatever else runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import HEARING, RECIPES
from support.drafting import ask_always
from support.laboratory import Laboratory
from support.mixes import TEXTS, Array, Asked, Subject, bits
from support.mtp_files import with_mtp_layer
from support.seeing import picture
from support.sights import SIGHTS
from support.sounds import sound
from support.tiny_adapter import write_tiny_adapter

from tampu.convert.quantize import quantize_file
from tampu.engine.engine import Engine
from tampu.errors import UnsupportedRequestError
from tampu.runner.speculation import Speculation

pytestmark = pytest.mark.parity

# Attention, windows, sinks, ALiBi, latent rows, experts, and each kind of state; and each type of
# weights and of caches.
KINDS = [
    ("llama", "Q4_K_M", "f16"), ("llama_wide_heads", "Q8_0", "q8_0"), ("gemma3_text", "F16", "f16"),
    ("gptoss", "F32", "f16"), ("qwen3moe", "Q4_K_M", "q8_0"), ("deepseek2_v3", "BF16", "f16"),
    ("qwen35", "Q8_0", "f16"), ("mamba", "F16", "f16"), ("granitehybrid_moe", "Q8_0", "f32"),
    ("lfm2", "F32", "f16"), ("bloom", "Q8_0", "f16"), ("mpt", "F16", "q8_0"),
]  # fmt: skip
MIXES = 100  # of each kind
MIXES_WITH_MORE = 10  # with adapters, guesses and media
FEW = 4

SEEING = [name for name in SIGHTS if name != "mllama"]
PICTURES = [picture(60, 90), picture(84, 56, seed=1)]
SOUNDS = [sound(0.31), sound(1.1, 1)]
SHOWN = [
    *(Asked(0, length, media=(0,)) for length in (41, 60)),
    *(Asked(1, 60, seed, media=media) for seed, media in enumerate(((0,), (1,), (1, 0)))),
    Asked(1, 45, 5),
]
TYPES = ("F32", "Q8_0")


def subject(laboratory: Laboratory, kind: tuple[str, str, str]) -> Subject:
    name, type_, cache = kind
    return Subject(laboratory.file(name, type_), cache)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind[0]}-{kind[1]}")
def test_no_bit_depends_on_what_else_runs(
    laboratory: Laboratory, kind: tuple[str, str, str]
) -> None:
    subject(laboratory, kind).check(MIXES, kind[0])


@pytest.mark.parametrize(
    "kind", [KINDS[0], KINDS[6], KINDS[10]], ids=lambda kind: f"{kind[0]}-{kind[1]}"
)
def test_no_bit_depends_on_some_mixes(laboratory: Laboratory, kind: tuple[str, str, str]) -> None:
    replace(subject(laboratory, kind), requests=TEXTS[2:-1:3]).check(FEW, kind[0])


@pytest.mark.parametrize("mixes", [FEW, pytest.param(MIXES_WITH_MORE, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [("llama", "Q4_K_M"), ("qwen35", "F32")], ids=lambda kind: kind[0])
def test_no_bit_depends_on_adapters_of_others(
    laboratory: Laboratory, tmp_path: Path, kind: tuple[str, str], mixes: int
) -> None:
    """Of the model itself, and chosen by requests."""
    path = laboratory.file(*kind)
    names = "base", "one", "two"
    files = {
        name: write_tiny_adapter(tmp_path / f"{name}.gguf", path, seed=seed, rank=3 + seed)
        for seed, name in enumerate(names)
    }

    def begin(engine: Engine, _alone: Mapping[Asked, Any]) -> None:
        for name in ("one", "two"):
            engine.adapters.load(name, files[name])

    chosen = [(), (("one", 1.0),), (("two", -0.5), ("one", 0.7))]
    requests = [replace(TEXTS[at], lora=lora) for at in (9, 12, 15) for lora in chosen]
    adapters = ((files["base"], 0.5),)
    Subject(path, "f16", [*requests, TEXTS[5]], (), {"adapters": adapters}, begin).check(
        mixes, kind[0]
    )


@pytest.mark.parametrize(
    ("type_", "mixes"),
    [
        ("F32", FEW),
        *(pytest.param(each, MIXES_WITH_MORE, marks=pytest.mark.slow) for each in TYPES),
    ],
)
def test_no_bit_depends_on_guesses_of_multi_token_prediction(
    laboratory: Laboratory, tmp_path: Path, type_: str, mixes: int
) -> None:
    path, _ = with_mtp_layer(laboratory, "qwen35", tmp_path)
    if type_ != "F32":
        quantize_file(path, tmp_path / "quantized.gguf", type_)
        path = tmp_path / "quantized.gguf"
    drafters = []

    def begin(engine: Engine, alone: Mapping[Asked, Any]) -> None:
        source = engine.model.scheduler.drafts.source
        if isinstance(source, Speculation) and source.model is not None:
            answered = (asked for asked in alone if asked.seed is not None)
            texts = [[*asked.prompt, *alone[asked][0]] for asked in answered]
            drafters.append(ask_always(engine, texts))

    options = {"spec_type": "draft-mtp"}
    Subject(path, "f16", TEXTS[9:], options=options, begin=begin).check(mixes, type_)
    assert sum(each.asked for each in drafters) > mixes


def check_media(
    laboratory: Laboratory, kind: tuple[str, str], media: Sequence[Array], mixes: int
) -> None:
    options = {"context": RECIPES[kind[0]].pictures_context}
    Subject(laboratory.file(*kind), "f16", SHOWN, media, options).check(mixes, kind[0])


@pytest.mark.slow
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("name", SEEING)
def test_no_bit_depends_on_what_else_runs_beside_pictures(
    laboratory: Laboratory, name: str, type_: str
) -> None:
    check_media(laboratory, (name, type_), PICTURES, MIXES_WITH_MORE)


@pytest.mark.slow
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("name", HEARING)
def test_no_bit_depends_on_what_else_runs_beside_sounds(
    laboratory: Laboratory, name: str, type_: str
) -> None:
    check_media(laboratory, (name, type_), SOUNDS, MIXES_WITH_MORE)


@pytest.mark.parametrize(("name", "media"), [("gemma3_vision", PICTURES), ("qwen3_asr", SOUNDS)])
def test_no_bit_depends_on_some_mixes_with_media(
    laboratory: Laboratory, name: str, media: Sequence[Array]
) -> None:
    check_media(laboratory, (name, "F32"), media, 2)


def test_pictures_that_layers_read_together_are_refused_and_text_is_not(
    laboratory: Laboratory,
) -> None:
    with Subject(laboratory.file("mllama"), "f16").load() as engine:
        assert engine.logits([1, 2, 3]).shape[0] == 3
        with pytest.raises(UnsupportedRequestError, match=r"does not support images of .*layers"):
            engine.prepare_image(PICTURES[0])


def test_without_the_mode_bits_depend_on_the_batch(laboratory: Laboratory) -> None:
    """The comparison above can fail: it does where the mode is off."""
    own, asked = subject(laboratory, KINDS[0]), Asked(0, 90)
    found = []
    for batch in (1, 512):
        with own.load(batch=batch, deterministic=False) as engine:
            found.append(bits(own.ask(engine, asked)))
    assert found[0] != found[1]
