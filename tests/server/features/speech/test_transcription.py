"""How models are asked for a transcript, by the marks in their vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from support.checkpoints import make_checkpoint
from transformers.models.qwen3_asr.processing_qwen3_asr import LANGUAGE_CODE_TO_NAME

from tampu.convert import convert
from tampu.engine.prompts import MEDIA_MARKER, ChatPrompt, TextPrompt
from tampu.engine.sounds import spoken_tokens
from tampu.errors import RequestError
from tampu.runner.generate_options import token_limit
from tampu.server.features.speech.transcription import (
    SpeechTask,
    speech_form,
    transcription_request,
)
from tampu.server.serving.model_defaults import ModelDefaults
from tampu.store.model_info import read_model_info

TEMPLATE = (
    "<|im_start|>system\n{% for m in messages if m.role == 'system' %}{{ m.content[0].text }}"
    "{% endfor %}<|im_end|>\n<|im_start|>user\n"
    "<|audio_start|><|audio_pad|><|audio_end|><|im_end|>\n"
    "<|im_start|>assistant\n{{ messages[-1].content[0].text }}"
)


def defaults_of(name: str, folder: Path) -> ModelDefaults:
    convert(make_checkpoint(name, folder / name), folder / f"{name}.gguf", "F32")
    return ModelDefaults(read_model_info(folder / f"{name}.gguf"))


@pytest.mark.parametrize("language", ["", "de", "German", "yue"])
@pytest.mark.parametrize("prompt", ["", "Ada, Grace"])
def test_qwens_prompt_is_that_of_transformers(tmp_path: Path, language: str, prompt: str) -> None:
    defaults = defaults_of("qwen3_asr", tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        tmp_path / "qwen3_asr",
        extra_special_tokens={
            "audio_token": "<|audio_pad|>",
            "audio_bos_token": "<|audio_start|>",
            "audio_eos_token": "<|audio_end|>",
        },
    )
    processor = transformers.Qwen3ASRProcessor(
        transformers.Qwen3ASRFeatureExtractor(), tokenizer, TEMPLATE
    )
    [expected] = processor.apply_transcription_request(
        np.zeros(16_000, np.float32),
        language=language or None,
        prompt=prompt or None,
        tokenize=False,
    )
    task = SpeechTask(language=language, prompt=prompt)
    form = speech_form(task, "m", defaults)
    assert form.text is not None
    sound = "<|audio_start|><|audio_pad|><|audio_end|>"
    assert form.text.replace(MEDIA_MARKER, sound) == expected
    assert form.says_language == (not language)
    begun = form.prompt(b"file", "Hallo").text
    assert begun.endswith("<asr_text>Hallo")
    assert form.prompt(b"file") == TextPrompt(form.text, (b"file",))


@pytest.mark.parametrize("language", ["klingon", "en-US", "xx", "eng", "?!"])
def test_what_is_not_a_language_is_refused(language: str) -> None:
    with pytest.raises(RequestError, match=r"language must be a code of ISO 639-1 such as en"):
        SpeechTask(language=language)


@pytest.mark.parametrize("language", ["en", "DE", "cy", "yue", "German"])
def test_codes_and_names_of_languages_are_taken(language: str) -> None:
    assert SpeechTask(language=language).instruction.endswith(f"The language is {language}.")


def test_every_language_of_qwens_is_known(tmp_path: Path) -> None:
    defaults = defaults_of("qwen3_asr", tmp_path)
    for code, name in LANGUAGE_CODE_TO_NAME.items():
        text = speech_form(SpeechTask(language=code), "m", defaults).text
        assert text is not None
        assert text.endswith(f"language {name}<asr_text>")
    with pytest.raises(RequestError, match="language must be one that Qwen3-ASR knows"):
        speech_form(SpeechTask(language="cy"), "m", defaults)
    with pytest.raises(RequestError, match='"m" only transcribes: choose another model'):
        speech_form(SpeechTask(translates=True), "m", defaults)


def test_voxtrals_prompt_is_that_of_mistrals_library(tmp_path: Path) -> None:
    defaults = defaults_of("voxtral", tmp_path)
    plain = speech_form(SpeechTask(), "m", defaults)
    assert plain.text == f"[INST]{MEDIA_MARKER}[/INST][TRANSCRIBE]"
    assert not plain.warnings
    for language in ("de", "German"):
        german = speech_form(SpeechTask(language=language, prompt="Ada"), "m", defaults)
        assert german.text == f"[INST]{MEDIA_MARKER}[/INST]lang:de[TRANSCRIBE]"
        assert german.warnings == ("prompt is ignored: Voxtral takes none for a transcription",)
    english = SpeechTask(translates=True, prompt="Ada")
    assert isinstance(speech_form(english, "m", defaults).prompt(b""), ChatPrompt)


def test_another_model_is_told_what_to_do(tmp_path: Path) -> None:
    defaults = defaults_of("gemma4_unified_hearing", tmp_path)
    task = SpeechTask(language="de", prompt="Ada")
    prompt = speech_form(task, "m", defaults).prompt(b"file")
    assert isinstance(prompt, ChatPrompt)
    [message] = prompt.messages
    assert message["media"] == [b"file"]
    begun = speech_form(task, "m", defaults).prompt(b"file", "Hallo")
    assert isinstance(begun, ChatPrompt)
    assert begun.messages[1:] == ({"role": "assistant", "content": "Hallo"},)
    assert message["content"].startswith("Transcribe the speech exactly as it is spoken.")
    assert "The language is de." in message["content"]
    assert "Ada" in message["content"]


def test_a_transcript_has_an_end_by_the_length_of_its_sound_and_the_models_own(
    tmp_path: Path,
) -> None:
    defaults = defaults_of("qwen3_asr", tmp_path)
    form = speech_form(SpeechTask(), "m", defaults)
    for own in (None, 100):
        parameters = {} if own is None else {"num_predict": own}
        given = ModelDefaults(defaults.info, parameters=parameters)
        asked: Any = transcription_request(form, [b"a", b"b"], "m", given).requests(65_536, None)
        assert [each.is_transcript for each in asked] == [True, True]
        assert {each.options.max_tokens for each in asked} == {own or token_limit(65_536)}
    assert [spoken_tokens(seconds) for seconds in (0.0, 0.5, 30.0)] == [32, 40, 512]
