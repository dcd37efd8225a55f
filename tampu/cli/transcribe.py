"""`tampu transcribe`: the text of sounds, with times if they are wanted."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeAlias

import typer

from tampu.cli.exit_codes import fail
from tampu.cli.form import form_body
from tampu.cli.repl.wrapping import without_controls
from tampu.cli.standard_input import NAME, is_standard_input
from tampu.errors import RequestError, TampuError
from tampu.ml.atomic_file import atomic_file
from tampu.settings.settings import Settings

Format: TypeAlias = Literal["text", "json", "srt", "vtt", "verbose_json"]
_SUFFIXES = {"text": ".txt", "json": ".json", "verbose_json": ".json"}
_DELTA, _SEGMENT = "transcript.text.delta", "transcript.text.segment"


class SpeechServer(Protocol):
    """A server with OpenAI's transcriptions."""

    def events(self, path: str, body: bytes, content_type: str) -> Generator[dict[str, Any]]:
        """Yield the events of a stream.

        Raises:
            ServerError: if it refused, or failed while it answered.
        """
        ...

    def close(self) -> None:
        """End the connection, or the server if it is within this program."""
        ...


def transcribe_command(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE", help="Sounds: WAV, MP3, FLAC, M4A, ...; - is standard input."
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Model (default: the only one that can hear)."),
    ] = None,
    language: Annotated[
        str | None, typer.Option("--language", "-l", help="Language that is spoken, such as en.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", help="Words and style that are likely.")
    ] = None,
    temperature: Annotated[
        float, typer.Option("--temperature", help="Of sampling, 0 to 1.", min=0, max=1)
    ] = 0.0,
    translate: Annotated[bool, typer.Option("--translate", help="Translate into English.")] = False,
    format_: Annotated[
        Format, typer.Option("--format", "-f", help="Format of the output.")
    ] = "text",
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", help="Folder for a file of each sound's name."),
    ] = None,
) -> None:
    """Transcribe sounds, on a running server or else in this program.

    The text is printed while it is generated; with --output-dir it is also written to files. A
    sound is cut at its silences, so it may have an hour. The exit code is 2 if a file failed.
    """
    outputs = _outputs(files, format_, output_dir)
    given = {"model": model, "language": language, "prompt": prompt}
    fields = [(name, value) for name, value in given.items() if value]
    streamed = "json" if format_ in ("text", "json") else "verbose_json"
    fields += [("temperature", str(temperature)), ("response_format", streamed)]
    fields += [("stream", "true"), ("chunking_strategy", "auto")]
    route = f"/v1/audio/{'translations' if translate else 'transcriptions'}"
    failed = 0
    with closing(_server(Settings.from_environment())) as server:
        for file, output in zip(files, outputs, strict=True):
            try:
                if len(files) > 1 and format_ == "text":
                    print(f"==> {file} <==")
                body, kind = form_body(fields, file.name, _read(file))
                with closing(server.events(route, body, kind)) as events:
                    write_transcript(events, format_, output)
            except TampuError as error:
                failed = fail(f"{NAME if is_standard_input(file) else file}: {error}")
    if failed:
        raise typer.Exit(failed)


def _server(settings: Settings) -> SpeechServer:
    from tampu.cli.repl.select_backend import running_server

    found = running_server(settings)
    if found is not None:
        return found
    from tampu.cli.own_server import OwnServer  # imports the whole server

    return OwnServer(settings)


def _outputs(files: Sequence[Path], format_: Format, folder: Path | None) -> list[Path | None]:
    """Return where each transcript is written, and make the folder.

    Raises:
        RequestError: if one cannot be written there.
        OSError: if the folder cannot be made.
    """
    if len(files) > 1 and folder is None and format_ in ("srt", "vtt"):
        raise RequestError(f"several files with the format {format_} need --output-dir")
    outputs = [_output(file, format_, folder) for file in files]
    if len({*outputs} - {None}) < len(files) and folder is not None:
        raise RequestError("two of the files would have the same name in --output-dir")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    for output in outputs:
        _check_output(output)
    return outputs


def _output(file: Path, format_: Format, folder: Path | None) -> Path | None:
    """Return where a transcript is written; None: only to standard output."""
    return folder and folder / (file.stem + _SUFFIXES.get(format_, f".{format_}"))


def _check_output(output: Path | None) -> None:
    """Raise RequestError if a transcript cannot be written, as far as is known before."""
    if output is None:
        return
    if output.is_dir():
        raise _unwritable(output, errno.EISDIR)
    if not os.access(output.parent, os.W_OK | os.X_OK):
        raise _unwritable(output, errno.EACCES)


def _unwritable(output: Path, number: int | None) -> RequestError:
    reason = os.strerror(number) if number else "unknown error"
    return RequestError(f"{output}: cannot be written: {reason}")


def _read(file: Path) -> bytes:
    """Return the content of a sound's file.

    Raises:
        RequestError: if it cannot be read, is too large, or is not a sound.
    """
    from tampu.audio.formats import DEFAULT_AUDIO_LIMITS, check_audio  # slow to import

    limit = DEFAULT_AUDIO_LIMITS.size_bytes
    try:
        with (
            nullcontext(sys.stdin.buffer) if is_standard_input(file) else file.open("rb") as opened
        ):
            content = opened.read(limit + 1)  # a pipe or a device has no size
    except OSError as error:
        raise RequestError(f"cannot be read: {error.strerror}") from error
    if len(content) > limit:
        raise RequestError(f"it has more than {limit} bytes: cut it into parts")
    check_audio(content)
    return content


def write_transcript(
    events: Iterator[dict[str, Any]], format_: Format, output: Path | None
) -> None:
    """Print a transcript as it comes, and write it to a file when it is whole."""
    segments, done = [], {}
    for event in events:
        if event["type"] == _DELTA:
            if format_ == "text":
                print(without_controls(event["delta"]), end="", flush=True)
        elif event["type"] == _SEGMENT:
            segments.append(event)
            if output is not None:
                print(_line(event), flush=True)
        else:
            done = event
    if format_ == "text":
        print()
    whole = _whole(done, segments, format_)
    if output is None:
        if format_ != "text":
            print(without_controls(whole), end="")
        return
    try:
        with atomic_file(output, is_durable=False) as file:
            file.write(whole.encode())
    except OSError as error:
        raise _unwritable(output, error.errno) from error
    print(f"{output}: written", file=sys.stderr)


def _whole(done: dict[str, Any], segments: list[dict[str, Any]], format_: Format) -> str:
    """Return a transcript as a file of its format has it."""
    from tampu.audio.subtitles import Cue, to_srt, to_vtt

    if format_ == "text":
        return f"{done['text']}\n"
    if format_ in ("srt", "vtt"):
        cues = [Cue(each["start"], each["end"], each["text"]) for each in segments]
        return to_srt(cues) if format_ == "srt" else to_vtt(cues)
    found = {name: value for name, value in done.items() if name != "type"}
    return json.dumps(found, ensure_ascii=False) + "\n"


def _line(segment: dict[str, Any]) -> str:
    """Return a segment as it is shown while a file is transcribed."""
    return f"[{segment['start']:.2f} --> {segment['end']:.2f}] {without_controls(segment['text'])}"
