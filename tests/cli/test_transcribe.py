"""`tampu transcribe`: sounds to text and subtitles, on a server or in the command."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO, TextIOWrapper
from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import make_checkpoint
from support.serving import start_server
from support.sounds import babble, pause, wav

from tampu.cli import app, transcribe
from tampu.cli.repl.wrapping import without_controls
from tampu.cli.transcribe import Format, write_transcript
from tampu.convert import convert
from tampu.ml.atomic_file import AtomicFile, atomic_file
from tampu.store import ModelName
from tampu.store.create import CreateSpec, create
from tampu.store.library import Library
from tampu.store.modelfile import parse_modelfile

Run = Callable[..., tuple[int, str, str]]
TALK = np.concatenate([pause(1), babble(1, 1), pause(8, 2), babble(1, 3), pause(1, 4)])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, files = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("files")
    checkpoint = make_checkpoint("gemma4_unified_hearing", files / "checkpoint")
    convert(checkpoint, files / "m.gguf", "F32")
    modelfile = parse_modelfile("FROM m.gguf\nPARAMETER num_predict 12\nPARAMETER num_ctx 512")
    create(Library(folder), ModelName.parse("m"), CreateSpec(modelfile=modelfile, folder=files))
    return folder


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    models: Path,
) -> Run:
    """Run the command on sounds in the current folder; return the exit code and the outputs."""
    monkeypatch.setenv("TAMPU_HOST", "127.0.0.1:1")
    monkeypatch.setenv("TAMPU_MODELS", str(models))
    monkeypatch.chdir(tmp_path)
    for name in ("a.wav", "b.wav"):
        Path(name).write_bytes(wav(TALK))
    Path("silent.wav").write_bytes(wav(np.zeros(16_000, np.float32)))
    Path("notes.wav").write_text("not a sound")

    def run(*arguments: str) -> tuple[int, str, str]:
        code = app.run(["transcribe", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def host(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with the model, which stays loaded."""
    server = start_server(models, tmp_path_factory.mktemp("home"))
    yield server.url.removeprefix("http://")
    server.end()


@pytest.fixture
def on_server(run: Run, host: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command where a server runs."""
    monkeypatch.setenv("TAMPU_HOST", host)
    return run


def test_the_text_is_printed_and_every_format_says_the_same(on_server: Run) -> None:
    code, text, _ = on_server("a.wav")
    assert code == 0
    assert len(text) > 1
    assert text.endswith("\n")
    code, out, _ = on_server("a.wav", "-f", "json", "--language", "en", "--model", "m")
    assert code == 0
    assert set(json.loads(out)) == {"text", "usage"}
    _, out, _ = on_server("a.wav", "-f", "verbose_json")
    verbose = json.loads(out)
    assert [round(each["start"], 1) for each in verbose["segments"]] == [0.7, 9.7]
    _, srt, _ = on_server("a.wav", "--format", "srt")
    assert re.match(r"1\n00:00:00,7\d\d --> 00:00:02,\d{3}\n", srt)
    _, vtt, _ = on_server("a.wav", "--format", "vtt", "--translate")
    assert vtt.startswith("WEBVTT\n\n00:00:00.7")


def test_without_a_server_the_command_hears_itself(run: Run) -> None:
    code, text, _ = run("a.wav")
    assert code == 0
    assert len(text) > 1
    assert text.endswith("\n")
    _, out, _ = run("a.wav", "-f", "verbose_json")
    assert [round(each["start"], 1) for each in json.loads(out)["segments"]] == [0.7, 9.7]


def test_files_are_written_to_a_folder_and_segments_are_shown(on_server: Run) -> None:
    code, out, err = on_server("a.wav", "b.wav", "silent.wav", "-f", "srt", "-o", "out/deep")
    assert code == 0
    assert len(re.findall(r"^\[0\.7\d --> 2\.\d\d\] ", out, re.MULTILINE)) == 2
    assert "out/deep/b.srt: written" in err
    a, b, silent = (Path(f"out/deep/{name}.srt").read_text() for name in ("a", "b", "silent"))
    assert a == b
    assert "00:00:09,7" in a
    assert silent == ""
    on_server("a.wav", "-o", "out")
    # Random weights write control characters, which a terminal does not get.
    assert without_controls(Path("out/a.txt").read_text()) == on_server("a.wav")[1]


def test_a_file_that_fails_does_not_stop_the_others(on_server: Run) -> None:
    code, out, err = on_server("notes.wav", "nothing.wav", "silent.wav")
    assert code == 2
    assert "Error: notes.wav: the sound's format is not supported; supported: WAV, FLAC" in err
    assert "Error: nothing.wav: cannot be read: No such file or directory" in err
    assert out.endswith("==> silent.wav <==\n\n")


def test_a_transcript_that_cannot_be_written_is_named_before_anything_is_heard(run: Run) -> None:
    Path("out/b.srt").mkdir(parents=True)
    code, out, err = run("a.wav", "b.wav", "-f", "srt", "-o", "out")
    assert (code, out) == (2, "")
    assert "Error: out/b.srt: cannot be written: Is a directory" in err
    assert not Path("out/a.srt").exists()


def test_a_sound_may_come_from_standard_input(
    on_server: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(wav(TALK))))
    from_input = on_server("-")
    assert from_input[0] == 0
    assert from_input[1] == on_server("a.wav")[1]
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO()))
    code, _, err = on_server("-")
    assert code == 2
    assert "Error: standard input: the sound is empty" in err


def test_a_full_disk_does_not_stop_the_other_files(
    on_server: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def full(path: Path, *, is_durable: bool) -> Iterator[AtomicFile]:
        if path.stem == "a":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with atomic_file(path, is_durable=is_durable) as file:
            yield file

    monkeypatch.setattr(transcribe, "atomic_file", full)
    code, _, err = on_server("a.wav", "b.wav", "-o", "out")
    assert code == 2
    assert "Error: a.wav: out/a.txt: cannot be written: No space left on device" in err
    assert Path("out/b.txt").exists()


def test_a_file_without_an_end_is_not_read_to_its_end(run: Run) -> None:
    code, _, err = run("/dev/zero")
    assert code == 2
    assert "Error: /dev/zero: it has more than 134217728 bytes: cut it into parts" in err


@pytest.mark.parametrize("format_", ["text", "json", "srt", "vtt"])
def test_a_terminal_gets_no_control_characters(
    capsys: pytest.CaptureFixture[str], format_: Format
) -> None:
    text = "a\x9b31mb\x1bc"
    segment = {"type": "transcript.text.segment", "start": 0, "end": 1, "text": text}
    done = {"type": "transcript.text.done", "text": text}
    delta = {"type": "transcript.text.delta", "delta": text}
    write_transcript(iter([delta, segment, done]), format_, None)
    out = capsys.readouterr().out
    assert "31mb" in out
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", out)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("a.wav", "b.wav", "-f", "vtt"), "several files with the format vtt need --output-dir"),
        (("a.wav", "./a.wav", "-o", "out"), "two of the files would have the same name"),
        (("a.wav", "--model", "nothing"), "Error: a.wav: model 'nothing' not found"),
        (("a.wav", "--model", "demo"), 'Error: a.wav: "demo" does not support audio'),
        (
            ("a.wav", "--language", "?"),
            "Error: a.wav: language must be a code of ISO 639-1",
        ),
        (("a.wav", "--translate", "--language", "en"), "a translation is in English"),
    ],
)
def test_what_is_wrong_is_said(run: Run, arguments: tuple[str, ...], told: str) -> None:
    code, _, err = run(*arguments)
    assert code == 2
    assert told in err
