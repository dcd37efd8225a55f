"""Images in all APIs, in every form in which clients write base64."""

from __future__ import annotations

import base64
import textwrap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.engine.prompts import MEDIA_MARKER, TextPrompt
from tampu.errors import RequestError
from tampu.server.fields.media import decode_base64, decode_image, decode_video
from tests.server.conftest import Site

# With bytes for which the two alphabets differ, and an end that needs padding.
IMAGE = b"\x89PNG\r\n\x1a\n" + bytes([0xFB, 0xEF, 0xBE, 0xFF, 0xFF]) * 40 + b"\x00\x01\x02"
PLAIN = base64.b64encode(IMAGE).decode()
URL_SAFE = base64.urlsafe_b64encode(IMAGE).decode()
assert PLAIN.endswith("=")
assert {"-", "_"} <= {*URL_SAFE}

FORMS = {
    "plain": PLAIN,
    "a line break at the end": f"{PLAIN}\n",
    "lines of 76": "\n".join(textwrap.wrap(PLAIN, 76)),
    "lines of 64 from Windows": "\r\n".join(textwrap.wrap(PLAIN, 64)) + "\r\n",
    "spaces and tabs": " " + " \t".join(textwrap.wrap(PLAIN, 20)),
    "spaces within the padding": PLAIN.replace("=", " = "),
    "no padding": PLAIN.rstrip("="),
    "no padding, lines": "\n".join(textwrap.wrap(PLAIN.rstrip("="), 76)),
    "the alphabet of URLs": URL_SAFE,
    "the alphabet of URLs, no padding": URL_SAFE.rstrip("="),
}
URIS = {
    "a type": "data:image/png;base64,",
    "upper case": "DATA:IMAGE/PNG;BASE64,",
    "another type": "data:image/jpeg;base64,",
    "an old type": "data:image/x-png;base64,",
    "a parameter": "data:image/png;charset=utf-8;base64,",
    "a name": "data:image/png;name=a%20b.png;base64,",
    "a quoted name": 'data:image/png;name="a b;c.png";base64,',
    "spaces": "data: image/png ; base64 , ",
    "no type": "data:;base64,",
    "bytes": "data:application/octet-stream;base64,",
}
WRONG = {
    "a foreign letter": PLAIN[:9] + "!" + PLAIN[10:],
    "a letter outside ASCII": PLAIN[:9] + "é" + PLAIN[10:],
    "padding in the middle": PLAIN[:8] + "=" + PLAIN[9:],
    "too much padding": PLAIN + "=",
    "too little padding": base64.b64encode(b"abcd").decode()[:-1],
    "one letter too many": PLAIN.rstrip("=")[:-1],
    "no base64": "picture.png",
    "half a surrogate": "\ud83d" + PLAIN,
}
NOT_URIS = {
    "a type that is not read": "data:image/svg+xml;base64,",
    "a text": "data:text/plain;base64,",
    "no base64": "data:image/png,",
    "nothing": "data:",
}


def part(image: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": image}}


def said(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts]}]


def source(image: str) -> dict[str, Any]:
    given = {"type": "base64", "media_type": "image/png", "data": image}
    return {"type": "image", "source": given}


MARKED = f"see {MEDIA_MARKER}"
APIS: dict[str, Any] = {
    "/api/chat": lambda i: {"messages": [{"role": "user", "content": "x", "images": [i]}]},
    "/api/generate": lambda i: {"prompt": "x", "images": [i]},
    "/v1/chat/completions": lambda i: {"messages": said(part(i))},
    "/v1/responses": lambda i: {"input": said({"type": "input_image", "image_url": i})},
    "/v1/messages": lambda i: {"messages": said(source(i)), "max_tokens": 5},
    "/completion": lambda i: {"prompt": {"prompt_string": MARKED, "multimodal_data": [i]}},
    "/completions": lambda i: {"prompt": "[img-1]", "image_data": [{"id": 1, "data": i}]},
}

PLACES = {
    "/api/chat": "messages[0].images[0]",
    "/api/generate": "images[0]",
    "/v1/chat/completions": "messages[0].content[0]",
    "/v1/responses": "input[0].content[0]",
    "/v1/messages": "messages[0].content[0]",
    "/completion": "prompt.multimodal_data[0]",
    "/completions": "image_data[0]",
}


@pytest.mark.parametrize("path", APIS)
def test_every_api_takes_base64_in_every_form(site: Site, path: str) -> None:
    asked = [APIS[path](form) for form in FORMS.values()]
    answers = site.call(
        *(("POST", path, {"json": {"model": "demo", "stream": False, **body}}) for body in asked)
    )
    assert [answer.status_code for answer in answers] == [200] * len(FORMS)
    seen = [prompt for _, runner in site.start.runners for prompt, _ in runner.requests]
    images = [
        list(prompt.media if isinstance(prompt, TextPrompt) else prompt.messages[-1]["media"])
        for prompt in seen
    ]
    assert images == [[IMAGE]] * len(FORMS)
    assert [prompt.places for prompt in seen] == [(PLACES[path],)] * len(FORMS)


@pytest.mark.parametrize("path", APIS)
def test_other_texts_are_refused_with_their_place(site: Site, path: str) -> None:
    for text in WRONG.values():
        if "\ud83d" in text:  # a body cannot have it
            continue
        body = {"model": "demo", "stream": False, **APIS[path](text)}
        [answer] = site.call(("POST", path, {"json": body}))
        assert answer.status_code == 400
        assert "invalid base64 in " in answer.text


@pytest.mark.parametrize("uri", URIS.values(), ids=URIS)
@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_data_uris_may_have_parameters(uri: str, text: str) -> None:
    assert decode_image(uri + text, "x", is_uri=True).data == IMAGE
    video = uri.replace("image", "video").replace("IMAGE", "VIDEO")
    assert decode_video(video + text, "x").data == IMAGE


def test_data_uris_may_be_percent_encoded() -> None:
    text = PLAIN.replace("+", "%2B").replace("/", "%2f").replace("=", "%3D")
    assert decode_image(f"data:image/png;base64,{text}", "x").data == IMAGE


def test_ollamas_api_takes_data_uris_too() -> None:
    assert decode_image(f"data:image/png;base64,{PLAIN}", "x").data == IMAGE


@pytest.mark.parametrize("uri", NOT_URIS.values(), ids=NOT_URIS)
def test_other_data_uris_are_refused(uri: str) -> None:
    with pytest.raises(RequestError, match=r"^messages\[0\]: expected data:image/png;base64"):
        decode_image(uri + PLAIN, "messages[0]", is_uri=True)


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_what_is_not_base64_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        decode_base64(text)


@pytest.mark.parametrize("url", ["https://a.b/c.png", "file:///a.png", "HTTP://a/b", "gs://a/b"])
def test_urls_are_refused_by_name(url: str) -> None:
    with pytest.raises(RequestError, match=r"^x: URLs are not fetched: send a data URI"):
        decode_image(url, "x")
    with pytest.raises(RequestError, match="TAMPU_IMAGE_URLS"):
        decode_image(url, "x", is_uri=True)


@given(st.binary(max_size=300), st.integers(1, 90), st.sampled_from(["\n", "\r\n", " ", "\t"]))
def test_all_bytes_come_back(data: bytes, width: int, space: str) -> None:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(data).decode()
        for each in (text, text.rstrip("=")):
            parts = [each[i : i + width] for i in range(0, len(each), width)]
            assert decode_base64(space.join(parts)) == data
            assert decode_base64((space.join(parts) + space).encode()) == data
