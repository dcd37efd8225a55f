"""What shells pipe into commands and write into files for them, in each encoding that they use."""

from __future__ import annotations

import codecs
import json
from pathlib import Path

import pytest
from support.piped import piped

from tampu.cli.parameters import read_format
from tampu.cli.run_model import read_question
from tampu.cli.standard_input import input_lines, read_file_or_input
from tampu.errors import RequestError
from tampu.settings.config_file import read_toml

ENCODINGS = ["utf-8", "utf-8-sig", "utf-16"]
STDIN = Path("-")


def as_escaped(data: bytes) -> str:
    """Return bytes as Python has them in `sys.argv`."""
    return data.decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_prompt_may_be_in_any_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    monkeypatch.setattr("sys.stdin", piped("Grüße\r\n你好\n".encode(encoding)))
    assert read_question([]) == "Grüße\n你好\n"


def test_bytes_that_are_no_text_become_replacement_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", piped(b"caf\xe9 \xf0\x9f\n"))
    assert read_question([as_escaped(b"na\xefve")]) == "caf\ufffd \ufffd\n na\ufffdve"


def test_a_prompt_in_the_encoding_of_the_terminal_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", piped("café", "latin-1"))
    assert read_question([]) == "café"


def test_a_prompt_in_unmarked_utf16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", piped("What?".encode("utf-16-le")))
    with pytest.raises(RequestError, match="standard input: is UTF-16 without a byte order mark"):
        read_question([])


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_schema_may_be_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "schema.json"
    path.write_bytes('{"type": "object",\r\n "title": "ü"}'.encode(encoding))
    assert read_format(str(path)) == {"type": "object", "title": "ü"}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_configuration_may_be_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "tampu.toml"
    path.write_bytes('a = "ü"\r\nb = 2\r\n'.encode(encoding))
    assert read_toml(path) == {"a": "ü", "b": 2}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_of_json_may_be_in_any_encoding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, encoding: str, end: str
) -> None:
    data = f'"ü"{end}{{"a": 1}}{end}'.encode(encoding)
    (tmp_path / "in.jsonl").write_bytes(data)
    monkeypatch.setattr("sys.stdin", piped(data))
    for path in (tmp_path / "in.jsonl", STDIN):
        found = [json.loads(str(line)) for _, line in input_lines(path)]
        assert found == ["ü", {"a": 1}]


def test_a_line_that_is_no_text_does_not_hide_the_others(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'"a"\n"caf\xe9"\n"b"\n')
    good, bad, last = [line for _, line in input_lines(path)]
    assert (good, last) == ('"a"\n', '"b"\n')
    assert str(bad) == f"{path}, line 2 is not valid UTF-8"


def test_cut_utf16_is_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(codecs.BOM_UTF16_LE + '"a"\n'.encode("utf-16-le") + b"x")
    first, _ = [line for _, line in input_lines(path)]
    assert first == '"a"\n'


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_modelfile_may_be_in_any_encoding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, encoding: str
) -> None:
    data = "FROM x\r\nSYSTEM ü\r\n".encode(encoding)
    (tmp_path / "Modelfile").write_bytes(data)
    monkeypatch.setattr("sys.stdin", piped(data))
    for path in (tmp_path / "Modelfile", STDIN):
        assert read_file_or_input(path) == "FROM x\nSYSTEM ü\n"
