"""Text in files, as editors and shells of all systems write it."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.errors import RequestError, SettingsError
from tampu.text import decode_text, read_text, valid_text

TEXT = 'FROM x\n\nSYSTEM "Grüße, 你好 😀"\n'
WRITTEN = {
    "UTF-8": TEXT.encode(),
    "UTF-8 with a mark": TEXT.encode("utf-8-sig"),
    "UTF-16 of PowerShell": codecs.BOM_UTF16_LE + TEXT.replace("\n", "\r\n").encode("utf-16-le"),
    "UTF-16, the larger half first": codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"),
    "lines of Windows": TEXT.replace("\n", "\r\n").encode(),
    "lines of old Macs": TEXT.replace("\n", "\r").encode(),
    "mixed lines": TEXT.replace("\n\n", "\r\n\r").encode(),
}
REFUSED = {
    "Latin-1": ("Grüße".encode("latin-1"), r"is not valid UTF-8 \(at byte 2\): save it as UTF-8"),
    "cut": ("é".encode()[:1], r"is not valid UTF-8 \(at byte 0\)"),
    "UTF-16 cut": (codecs.BOM_UTF16_LE + b"a", r"is not valid UTF-16 \(at byte 2\)"),
    "UTF-16-LE unmarked": (TEXT.encode("utf-16-le"), "is UTF-16 without a byte order mark: save"),
    "UTF-16-BE unmarked": ("FROM x".encode("utf-16-be"), "is UTF-16 without a byte order mark"),
}


@pytest.mark.parametrize("data", WRITTEN.values(), ids=WRITTEN)
def test_a_text_is_the_same_however_it_is_written(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    assert read_text(path) == decode_text(data, "file") == TEXT


@pytest.mark.parametrize(("data", "told"), REFUSED.values(), ids=REFUSED)
def test_other_bytes_are_refused_with_what_to_do(data: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(RequestError, match=f"file: {told}"):
        read_text(path)
    with pytest.raises(SettingsError, match=f"^name: {told}"):
        decode_text(data, "name", SettingsError)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="missing: cannot be read: No such file"):
        read_text(tmp_path / "missing")


@given(st.text())
def test_marked_utf16_and_utf8_say_the_same(text: str) -> None:
    assert decode_text(text.encode("utf-8-sig"), "x") == decode_text(
        codecs.BOM_UTF16_BE + text.encode("utf-16-be"), "x"
    )


@given(st.text(st.characters(codec=None)))
def test_valid_text_can_be_encoded_and_keeps_what_could_be(text: str) -> None:
    found = valid_text(text)
    found.encode()
    if not any("\ud800" <= letter <= "\udfff" for letter in text):
        assert found == text


def test_what_is_no_text_becomes_a_replacement_character() -> None:
    assert valid_text(b"caf\xe9".decode("utf-8", "surrogateescape")) == "caf\ufffd"
    assert valid_text("a\ud83d") == "a\ufffd"
    assert valid_text("\ud83d\ude00") == "😀"
