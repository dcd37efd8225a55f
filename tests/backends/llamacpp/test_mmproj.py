"""Images in llama.cpp: the same results as in the native engine, and no text can be an image."""

from __future__ import annotations

import io
import queue
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from PIL import Image
from support.fork_server import FORK_SERVER
from support.ollama_files import PUBLISHED, publish
from support.projectors import take_apart

from tampu.backends.llamacpp import LlamaModel, load_llamacpp
from tampu.chat.media import with_media
from tampu.chat.prompt import PromptBuilder
from tampu.convert.divided import plan_part
from tampu.engine.engine import Engine
from tampu.engine.load_options import LoadOptions
from tampu.errors import ContextLengthError, RequestError
from tampu.ml.gguf import read_gguf
from tampu.runner.events import Done, Event, TextDelta
from tampu.runner.generate_options import generate_options
from tampu.store.library import built_in_paths
from tests.clients.questions import picture

pytestmark = pytest.mark.server

OPTIONS: dict[str, Any] = {"context": 256, "threads": 1, "cache_type": "f32"}
QUESTION = "What colour is it?"
Files: TypeAlias = tuple[Path, Path]
Loaded: TypeAlias = tuple[LlamaModel, PromptBuilder]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The built-in model, and its vision encoder in a file of its own."""
    folder = tmp_path_factory.mktemp("apart")
    text, projector = folder / "text.gguf", folder / "projector.gguf"
    take_apart(built_in_paths()[0], text, projector)
    return text, projector


@pytest.fixture(scope="module")
def loaded(files: Files) -> Iterator[Loaded]:
    text, projector = files
    with load_llamacpp(
        text, LoadOptions(**OPTIONS, projector=str(projector)), FORK_SERVER
    ) as model:
        # The decoder's process is there before the first test begins.
        with_media(asked(picture()), model.requests.prepare_file)
        prompts = model.requests.prompts
        assert prompts is not None
        yield model, prompts


def asked(*images: bytes, text: str = QUESTION) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text, "media": list(images)}]


def answer(loaded: Loaded, messages: list[dict[str, Any]]) -> list[Event]:
    model, prompts = loaded
    prompt = prompts.build(
        with_media(messages, model.requests.prepare_file), limit=model.context - 1
    )
    return events_of(model, prompt.tokens)


def events_of(model: LlamaModel, prompt: list[Any], **more: Any) -> list[Event]:
    received: queue.SimpleQueue[Event] = queue.SimpleQueue()
    options = {"temperature": 0.0, "max_tokens": 8, "logprobs": True} | more
    model.submit(prompt, generate_options(options), received.put)
    events: list[Event] = []
    while not events or isinstance(events[-1], TextDelta):
        events.append(received.get(timeout=60))
    assert isinstance(events[-1], Done), events[-1]
    return events


def said(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def saved(image: Image.Image, kind: str, **more: Any) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **more)
    return content.getvalue()


def test_videos_are_refused(loaded: Loaded) -> None:
    model, _ = loaded
    with pytest.raises(RequestError, match="videos need tampu's own engine"):
        model.requests.prepare_file(b"\0\0\0\x1cftypisom")


def test_an_image_gives_the_logprobs_of_the_native_engine(loaded: Loaded, files: Files) -> None:
    """With the line breaks that the model learnt around images, which llama.cpp leaves out."""
    model, prompts = loaded
    text, projector = files
    with Engine.load(text, projector=projector, **OPTIONS) as engine:
        prompt = prompts.build(with_media(asked(picture()), engine.prepare_file), limit=255).tokens
        native = engine.generate(prompt, temperature=0.0, max_tokens=8, logprobs=True)
    [message] = with_media(asked(picture()), model.requests.prepare_file)
    breaks = model.tokenizer.encode("\n\n", add_special=False)
    put = [
        each
        for item in prompt
        for each in ([item] if isinstance(item, int) else [*breaks, *message["media"], *breaks])
    ]
    events = events_of(model, put)
    scores = [s for event in events if isinstance(event, TextDelta) for s in event.logprobs]
    assert [s.token for s in scores] == [s.token for s in native.logprobs]
    for ours, theirs in zip(scores, native.logprobs, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP", "BMP", "JPEG"])
def test_images_of_all_formats_are_understood(loaded: Loaded, kind: str) -> None:
    image = Image.open(io.BytesIO(picture())).convert("RGB")
    assert said(answer(loaded, asked(saved(image, kind)))) == "Red."


def test_images_are_at_their_positions_and_are_counted(loaded: Loaded) -> None:
    model, prompts = loaded
    messages = [*asked(picture()), {"role": "assistant", "content": "Red."},
                *asked(picture(), picture())]  # fmt: skip
    prompt = prompts.build(with_media(messages, model.requests.prepare_file), limit=255)
    images = [item for item in prompt.tokens if not isinstance(item, int)]
    assert [len(each) for each in images] == [18] * 3  # 16 inputs between two marks
    events = events_of(model, prompt.tokens)
    assert events[-1].usage.prompt_tokens == len(prompt)


def test_a_prompt_that_is_too_long_with_its_images_is_refused(loaded: Loaded) -> None:
    model, _ = loaded
    [message] = with_media(asked(*[picture()] * 14), model.requests.prepare_file)
    prompt = [model.tokenizer.bos, *message["media"]]
    with pytest.raises(ContextLengthError, match="256 tokens > 255 maximum"):
        events_of(model, prompt + [5] * 3)


def test_output_about_an_image_ends_when_the_context_is_full(loaded: Loaded) -> None:
    model, prompts = loaded
    prompt = prompts.build(with_media(asked(picture()), model.requests.prepare_file), limit=255)
    [*_, done] = events_of(model, prompt.tokens, max_tokens=None, ignore_eos=True)
    assert done.reason == "length"
    assert done.usage.prompt_tokens + done.usage.generated_tokens in range(250, 258)


@pytest.mark.parametrize("text", ["<end_of_turn>", "x <start_of_image> y", "<bos>"])
def test_text_that_llama_cpp_reads_as_a_control_token_is_refused(loaded: Loaded, text: str) -> None:
    with pytest.raises(RequestError, match=r"cannot put an image into .* would read a text"):
        answer(loaded, asked(picture(), text=text))
    assert said(answer(loaded, asked(text=text)))


def test_text_with_the_media_marker_of_llama_cpp_is_refused(loaded: Loaded) -> None:
    model, _ = loaded
    mark = model._projector._mark
    assert len(mark) > 30
    with pytest.raises(RequestError, match="cannot put an image"):
        answer(loaded, asked(picture(), text=f"look: {mark}"))


def test_a_file_that_is_not_an_image_is_refused(loaded: Loaded) -> None:
    with pytest.raises(RequestError, match="format is not supported"):
        answer(loaded, asked(b"not a picture"))
    with pytest.raises(RequestError, match="damaged or truncated"):
        answer(loaded, asked(picture()[:100]))


def test_an_image_with_too_many_pixels_is_refused(loaded: Loaded) -> None:
    large = saved(Image.new("RGB", (4100, 4100)), "PNG")
    with pytest.raises(RequestError, match="16810000 pixels; the limit of the llama"):
        answer(loaded, asked(large))


def test_an_image_without_a_projector_is_refused(files: Files) -> None:
    text, _ = files
    with load_llamacpp(text, LoadOptions(**OPTIONS), FORK_SERVER) as model:
        plain = asked()
        assert with_media(plain, model.requests.prepare_file) == plain
        with pytest.raises(RequestError, match=r"projector in a file of its own \(mmproj\)"):
            with_media(asked(picture()), model.requests.prepare_file)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in model in F32, text and vision in one file of Ollama's layout."""
    path = tmp_path_factory.mktemp("whole") / "model.gguf"
    return publish(built_in_paths()[0], PUBLISHED["gemma3_vision"], path)


def test_a_file_of_text_and_vision_is_divided_for_llama_cpp(loaded: Loaded, whole: Path) -> None:
    apart, prompts = loaded
    with load_llamacpp(whole, LoadOptions(**OPTIONS), FORK_SERVER) as model:
        assert model.requests.prompts is not None
        events = [
            answer(each, asked(picture()))
            for each in ((model, model.requests.prompts), (apart, prompts))
        ]
    scores = [
        [(score.token, pytest.approx(score.logprob, abs=1e-3)) for score in event.logprobs]
        for found in events
        for event in found
        if isinstance(event, TextDelta)
    ]
    assert said(events[0]) == "Red."
    assert scores[: len(scores) // 2] == scores[len(scores) // 2 :]


def test_a_vision_encoder_that_cannot_be_divided_leaves_a_text_model(
    whole: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tampu.gguf_compat.projectors._OF_ARCHITECTURES", {})
    with load_llamacpp(whole, LoadOptions(**OPTIONS), FORK_SERVER) as model:
        assert "loading its text model alone" in caplog.text
        assert model.requests.prompts is not None
        assert said(answer((model, model.requests.prompts), asked()))
        with pytest.raises(RequestError, match="vision encoder of 'gemma3' cannot be written"):
            with_media(asked(picture()), model.requests.prepare_file)


def test_a_vision_encoder_that_llama_cpp_refuses_leaves_a_text_model(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_without(whole, "mm.mm_input_projection.weight", tmp_path / "model.gguf")
    with load_llamacpp(path, LoadOptions(**OPTIONS), FORK_SERVER) as model:
        assert "loading its text model alone" in caplog.text
        assert model.requests.prompts is not None
        assert said(answer((model, model.requests.prompts), asked()))
        with pytest.raises(RequestError, match=r"takes no images: llama\.cpp cannot load"):
            with_media(asked(picture()), model.requests.prepare_file)


def write_without(path: Path, left_out: str, to: Path) -> Path:
    """Copy a file without one of its tensors."""
    file = read_gguf(path)
    assert left_out in file.tensors
    kept = {name: info for name, info in file.tensors.items() if name != left_out}
    plan_part(replace(file, tensors=kept)).write(to)
    return to
