"""Transcriptions and translations, with OpenAI's package and plain forms."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from support.checkpoints import make_checkpoint
from support.serving import Server, start_server
from support.sounds import Floats, babble, encoded, pause, sound, wav

from tampu.convert import convert
from tampu.store import ModelName
from tampu.store.create import CreateSpec, create
from tampu.store.library import Library
from tampu.store.modelfile import parse_modelfile

pytestmark = [pytest.mark.client, pytest.mark.server]

HEARING, SEEING, QWEN, VOXTRAL = NAMES = (
    "gemma4_unified_hearing", "gemma4_unified_seeing", "qwen3_asr", "voxtral",
)  # fmt: skip
ENDLESS = "endless"
TOKENS = 25  # of a second
ANSWER = 24  # tokens that a model with random weights writes at most
TALK = np.concatenate([pause(1), babble(2, 1), pause(8, 2), babble(3, 3), pause(1, 4)])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder, files = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("files")
    for name in NAMES:
        checkpoint = make_checkpoint(name, tmp_path_factory.mktemp("checkpoints") / name)
        convert(checkpoint, files / f"{name}.gguf", "F32")
        text = f"FROM {name}.gguf\nPARAMETER num_predict {ANSWER}\nPARAMETER num_ctx 512"
        spec = CreateSpec(modelfile=parse_modelfile(text), folder=files)
        create(Library(folder), ModelName.parse(name), spec)
    spec = CreateSpec(modelfile=parse_modelfile(f"FROM {HEARING}.gguf"), folder=files)
    create(Library(folder), ModelName.parse(ENDLESS), spec)
    server = start_server(folder, tmp_path_factory.mktemp("home"))
    yield server
    server.end()


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        yield client


def form(samples: Floats = TALK, **fields: Any) -> dict[str, Any]:
    return {"file": ("a.wav", wav(samples)), "model": HEARING, **fields}


def test_a_transcript_is_an_object_a_text_or_a_stream_of_the_same_text(
    client: openai.OpenAI,
) -> None:
    whole = client.audio.transcriptions.create(**form(sound(2.0)))
    text: Any = client.audio.transcriptions.create(**form(sound(2.0), response_format="text"))
    events = [*client.audio.transcriptions.create(**form(sound(2.0), stream=True))]
    assert whole.usage.input_tokens > 2 * TOKENS
    assert whole.usage.output_tokens > 0
    assert text == whole.text
    *deltas, done = events
    assert {each.type for each in deltas} <= {"transcript.text.delta"}
    assert done.type == "transcript.text.done"
    assert done.text == whole.text == "".join(each.delta for each in deltas).rstrip()
    assert done.usage.output_tokens == whole.usage.output_tokens


def test_a_model_that_goes_on_and_on_is_ended_by_the_length_of_the_sound(
    client: openai.OpenAI,
) -> None:
    talk = np.concatenate([pause(1), babble(1, 1), pause(1, 2)])
    whole = client.audio.transcriptions.create(**form(talk[16_000:], model=ENDLESS))
    assert whole.usage.output_tokens == 32 + 16 * 2
    cut = client.audio.transcriptions.create(**form(talk, model=ENDLESS, chunking_strategy="auto"))
    assert cut.usage.output_tokens == pytest.approx(32 + 16 * 1.6, abs=3)


def test_language_and_prompt_reach_the_model_and_a_translation_is_another_task(
    client: openai.OpenAI,
) -> None:
    plain, german, hinted = (
        client.audio.transcriptions.create(**form(sound(2.0), **more)).usage.input_tokens
        for more in ({}, {"language": "de"}, {"prompt": "Ada, Grace and Barbara"})
    )
    with pytest.warns(DeprecationWarning, match="deprecated"):  # of OpenAI's own service
        english: Any = client.audio.translations.create(**form(sound(2.0)))
    assert plain < german
    assert plain < hinted
    assert isinstance(english.text, str)


def test_segments_have_the_times_between_which_somebody_speaks(client: openai.OpenAI) -> None:
    found = client.audio.transcriptions.create(
        **form(response_format="verbose_json", timestamp_granularities=["segment"], language="en")
    )
    assert found.duration == 15.0
    assert found.language == "english"
    assert found.words is None
    times = [(each.start, each.end) for each in found.segments]
    assert times == [
        (pytest.approx(0.7, abs=0.1), pytest.approx(3.3, abs=0.1)),
        (pytest.approx(10.7, abs=0.1), pytest.approx(14.3, abs=0.1)),
    ]
    for each in found.segments:
        assert each.text
        assert each.tokens
        assert each.avg_logprob < 0
        assert each.text in found.text
    assert [each.seek for each in found.segments] == [round(start * 100) for start, _ in times]


def test_segments_are_streamed_when_they_end(client: openai.OpenAI) -> None:
    asked = form(response_format="verbose_json")
    whole: Any = client.audio.transcriptions.create(**asked)
    events: Any = [*client.audio.transcriptions.create(**asked, stream=True)]
    segments = [each for each in events if each.type == "transcript.text.segment"]
    assert [each.id for each in segments] == ["seg_0", "seg_1"]
    assert [(each.start, each.text) for each in segments] == [
        (each.start, each.text) for each in whole.segments
    ]
    deltas = "".join(each.delta for each in events if each.type == "transcript.text.delta")
    assert deltas.rstrip() == whole.text == events[-1].text
    kinds = [each.type for each in events]
    assert kinds.index("transcript.text.segment") < len(kinds) - 2  # not all at the end


def test_subtitles_have_the_same_segments(client: openai.OpenAI) -> None:
    whole: Any = client.audio.transcriptions.create(**form(response_format="verbose_json"))
    srt: Any = client.audio.transcriptions.create(**form(response_format="srt"))
    vtt: Any = client.audio.transcriptions.create(**form(response_format="vtt"))
    first, second = (f"00:00:{each.start:06.3f}" for each in whole.segments)
    assert vtt.startswith(f"WEBVTT\n\n{first} --> 00:00:03.")
    assert f"\n\n{second} --> 00:00:14." in vtt
    assert srt.startswith(f"1\n{first.replace('.', ',')} --> ")
    assert re.findall(r"^\d+$", srt, re.MULTILINE)[:2] == ["1", "2"]


def test_a_longer_sound_than_the_context_is_transcribed_in_pieces(client: openai.OpenAI) -> None:
    long = np.concatenate([part for n in range(4) for part in (babble(7, n), pause(1, n))])
    with pytest.raises(openai.BadRequestError, match="chunking_strategy"):
        client.audio.transcriptions.create(**form(long))
    vad = {"type": "server_vad", "threshold": 0.5, "silence_duration_ms": 400}
    found = client.audio.transcriptions.create(**form(long, chunking_strategy=vad))
    assert found.text
    assert found.usage.input_tokens > len(long) / 16_000 * TOKENS * 0.9


def test_logprobs_of_the_tokens_may_be_included(client: openai.OpenAI) -> None:
    found = client.audio.transcriptions.create(**form(sound(1.0), include=["logprobs"]))
    assert found.logprobs
    assert all(each.logprob <= 0 for each in found.logprobs)
    heard = b"".join(bytes(map(int, each.bytes)) for each in found.logprobs)
    assert heard.decode("utf-8", "replace").strip() == found.text
    [*_, done] = client.audio.transcriptions.create(
        **form(sound(1.0), include=["logprobs"], stream=True)
    )
    assert len(done.logprobs) == len(found.logprobs)


def test_nothing_is_heard_in_silence_that_is_cut(client: openai.OpenAI) -> None:
    silence = np.zeros(32_000, np.float32)
    verbose: Any = client.audio.transcriptions.create(
        **form(silence, response_format="verbose_json")
    )
    assert (verbose.text, verbose.segments, verbose.duration) == ("", [], 2.0)
    vtt: Any = client.audio.transcriptions.create(**form(silence, response_format="vtt"))
    assert vtt == "WEBVTT\n\n"
    events = [*client.audio.transcriptions.create(**form(silence, response_format="verbose_json"),
                                                  stream=True)]  # fmt: skip
    assert [each.type for each in events] == ["transcript.text.done"]
    assert client.audio.transcriptions.create(**form(silence)).usage.input_tokens > 2 * TOKENS


@pytest.mark.parametrize(
    ("rate", "kind"), [(192_000, "wav"), (8000, "wav"), (48_000, "mp3"), (16_000, "flac")]
)
def test_a_plain_form_is_enough_whatever_the_rate(server: Server, rate: int, kind: str) -> None:
    """As curl sends it with -F."""
    tone = sound(1.0)
    file = wav(tone, rate) if kind == "wav" else encoded(tone, kind, rate=rate)
    files: Any = {"file": (f"a.{kind}", file), "model": (None, HEARING), "temperature": (None, "0")}
    answer = httpx.post(f"{server.url}/v1/audio/transcriptions", files=files, timeout=60)
    assert answer.status_code == 200
    assert set(answer.json()) == {"text", "usage"}


def test_qwen_is_asked_in_its_own_form(client: openai.OpenAI) -> None:
    plain, forced, known = (
        client.audio.transcriptions.create(**form(sound(1.0), model=QWEN, **more))
        for more in ({}, {"language": "de"}, {"prompt": "Ada"})
    )
    assert forced.usage.input_tokens > plain.usage.input_tokens  # `language German<asr_text>`
    assert known.usage.input_tokens > plain.usage.input_tokens
    with (
        pytest.raises(openai.BadRequestError, match="only transcribes: choose another model"),
        pytest.warns(DeprecationWarning, match="deprecated"),
    ):
        client.audio.translations.create(**form(model=QWEN))
    with pytest.raises(openai.BadRequestError, match="language must be one that Qwen3-ASR knows"):
        client.audio.transcriptions.create(**form(model=QWEN, language="cy"))


def test_voxtral_is_asked_in_its_own_form(client: openai.OpenAI) -> None:
    window = 25  # tokens of two seconds
    plain = client.audio.transcriptions.create(**form(sound(1.0), model=VOXTRAL))
    assert plain.usage.input_tokens == window + len(["<s>", "[INST]", "[B", "[/INST]", "[T"])
    told = client.audio.transcriptions.with_raw_response.create(
        **form(sound(1.0), model=VOXTRAL, language="de", prompt="Ada")
    )
    assert "Voxtral takes none" in told.headers["warning"]
    assert json.loads(told.text)["usage"]["input_tokens"] > plain.usage.input_tokens


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"response_format": "ass"}, "json, text, srt, vtt or verbose_json, not 'ass'"),
        ({"response_format": "diarized_json"}, "no model here tells speakers apart"),
        (
            {"known_speaker_names": ["Ada"]},
            r"known_speaker_names\[\] is not supported: no model he",
        ),
        ({"known_speaker_references": ["data:audio/wav;base64,UklG"]}, r"known_speaker_references"),
        ({"response_format": "srt", "stream": True}, "stream needs the response_format json, text"),
        ({"temperature": 2}, "temperature must be a number from 0 to 1, not '2'"),
        ({"language": "?!"}, "language must be a code of ISO 639-1 such as en"),
        ({"include": ["words"]}, r"include\[\] must be logprobs, not 'words'"),
        ({"include": ["logprobs"], "response_format": "text"}, "include.. needs the response_form"),
        (
            {"timestamp_granularities": ["word", "segment"], "response_format": "verbose_json"},
            r"timestamp_granularities\[\] must be segment: models here give no times of words",
        ),
        ({"timestamp_granularities": ["segment"]}, "needs the response_format verbose_json"),
        ({"chunking_strategy": {"type": "semantic_vad"}}, "type must be server_vad, not 'sem"),
        (
            {"chunking_strategy": {"type": "server_vad", "threshold": 2}},
            "chunking_strategy.threshold must be a number from 0 to 1, not '2'",
        ),
        ({"file": ("a.txt", b"text")}, "file: the sound's format is not supported; supported: WAV"),
        (
            {"file": ("a.wav", wav(sound(0.2))[:200])},
            "the sound is damaged: its WAV file is truncated",
        ),
        (
            {"file": ("a.wav", wav(np.zeros(3_700_000, np.float32), 1000))},
            "the sound has 3700 seconds or more, the limit is 3600: cut it into parts",
        ),
        ({"model": SEEING}, "does not support audio"),
    ],
)
@pytest.mark.parametrize("cut", [False, True])
def test_what_is_wrong_with_a_form_is_said(
    client: openai.OpenAI, more: dict[str, Any], told: str, *, cut: bool
) -> None:
    if cut and "chunking_strategy" not in more:
        more = {**more, "chunking_strategy": "auto"}
    with pytest.raises(openai.BadRequestError, match=told):
        client.audio.transcriptions.create(**form(**more))
