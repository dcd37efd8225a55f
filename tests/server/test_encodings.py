"""Bodies that are not quite JSON in UTF-8: read as Ollama reads them, with a warning of a loss."""

from __future__ import annotations

import codecs
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.server.front.body import mended
from tampu.server.front.http_response import WARNING
from tests.server.conftest import Site

# What stands in a JSON text, and the text that the model gets.
LOSSY = {
    "a byte of Latin-1": (b"caf\xe9", "caf\ufffd"),
    "the first half of a character": (b"a \\ud83d", "a \ufffd"),
    "the first half, then more": (b"\\uD83Dabc", "\ufffdabc"),
    "the second half": (b"\\ude00!", "\ufffd!"),
    "two first halves": (b"\\ud83d\\ud83d", "\ufffd\ufffd"),
    "halves in the wrong order": (b"\\ude00\\ud83d", "\ufffd\ufffd"),
    "half of a character, and a whole one": (b"\\ud83d\\ud83d\\ude00", "\ufffd\U0001f600"),
    "a cut character": (b"a\xf0\x9f\x98", "a\ufffd"),
    "an encoded half": (b"\xed\xa0\xbd", "\ufffd\ufffd\ufffd"),
}
WHOLE = {
    "a whole pair": (b"\\ud83d\\ude00", "\U0001f600"),
    "a written escape": (b"\\\\ud83d", "\\ud83d"),
    "a backslash before half": (b"\\\\\\u00e9", "\\é"),
}
SAID = [{"role": "user", "content": "caf?"}]


def asked(words: bytes) -> bytes:
    return b'{"model": "m", "stream": false, "prompt": "' + words + b'"}'


def prompts(site: Site) -> list[str]:
    return [p.messages[-1]["content"] for _, r in site.start.runners for p, _ in r.requests]


@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.parametrize(("words", "read"), LOSSY.values(), ids=LOSSY)
def test_what_is_not_unicode_is_replaced_with_a_warning(
    site: Site, words: bytes, read: str, is_long: bool
) -> None:
    fill = "x" * 300_000 if is_long else ""
    body = asked(fill.encode() + words)
    [answer] = site.call(("POST", "/api/generate", {"content": body}))
    assert answer.status_code == 200
    assert prompts(site) == [fill + read]
    assert "U+FFFD" in answer.headers[WARNING]


@pytest.mark.parametrize(("words", "read"), WHOLE.values(), ids=WHOLE)
def test_what_is_whole_stays(site: Site, words: bytes, read: str) -> None:
    # The byte before it makes the body one that is mended.
    bodies = [asked(words), asked(b"\xff " + words)]
    answers = site.call(*(("POST", "/api/generate", {"content": body}) for body in bodies))
    assert [answer.status_code for answer in answers] == [200, 200]
    assert prompts(site) == [read, f"\ufffd {read}"]
    assert [WARNING in answer.headers for answer in answers] == [False, True]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_marked_body_is_read_without_a_warning(site: Site, encoding: str) -> None:
    body = json.dumps({"model": "m", "stream": False, "prompt": "ü"}, ensure_ascii=False)
    [answer] = site.call(("POST", "/api/generate", {"content": body.encode(encoding)}))
    assert answer.status_code == 200
    assert prompts(site) == ["ü"]
    assert WARNING not in answer.headers


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"messages": SAID, "stream": True}),
        ("/v1/messages", {"messages": SAID, "max_tokens": 5, "stream": True}),
        ("/v1/embeddings", {"model": "embedder", "input": "caf?"}),
    ],
)
def test_streams_and_tasks_have_the_warning_too(
    site: Site, path: str, more: dict[str, Any]
) -> None:
    content = json.dumps({"model": "m", **more}).encode().replace(b"?", b"\xe9")
    [answer] = site.call(("POST", path, {"content": content}))
    assert answer.status_code == 200
    assert "U+FFFD" in answer.headers[WARNING]


def test_a_mended_body_that_is_wrong_is_refused(site: Site) -> None:
    bodies = [asked(b"\xff")[:-1], b'{"model": "m", "\xff": 1, "\xfe": 2}', b"\xff\xfe", b"\xff"]
    answers = site.call(*(("POST", "/api/generate", {"content": body}) for body in bodies))
    assert [answer.status_code for answer in answers] == [400] * len(bodies)


@given(st.text())
def test_mending_changes_no_json(text: str) -> None:
    for is_ascii in (False, True):
        body = json.dumps({"x": text}, ensure_ascii=is_ascii).encode()
        assert mended(body) == (body, ())
        assert mended(codecs.BOM_UTF8 + body) == (body, ())


@given(st.text(st.characters(codec=None)))
def test_what_is_mended_can_be_read(text: str) -> None:
    body = json.dumps({"x": text}).encode()
    found, _ = mended(body)
    json.loads(found)["x"].encode()
