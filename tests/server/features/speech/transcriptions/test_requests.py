"""The forms of transcriptions."""

from __future__ import annotations

import pytest
from support.sounds import sound, wav

from tampu.errors import RequestError
from tampu.server.features.speech.transcriptions.requests import TranscriptionForm, read_form


def read(**fields: list[str]) -> TranscriptionForm:
    return read_form(fields, wav(sound(0.1)), "m", translates=False)


@pytest.mark.parametrize("suffix", ["", "[]", "[0]"])
def test_a_list_is_read_with_and_without_brackets(suffix: str) -> None:
    assert read(**{f"include{suffix}": ["logprobs"]}).with_logprobs
    word = {f"timestamp_granularities{suffix}": ["word"], "response_format": ["verbose_json"]}
    with pytest.raises(RequestError, match="models here give no times of words"):
        read(**word)
    with pytest.raises(RequestError, match="no model here tells speakers apart"):
        read(**{f"known_speaker_names{suffix}": ["Ada"]})


def test_an_empty_file_is_named_so() -> None:
    with pytest.raises(RequestError, match="file: the sound is empty"):
        read_form({}, b"", "m", translates=False)
