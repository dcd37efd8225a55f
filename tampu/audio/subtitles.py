"""Transcripts with times: SubRip (`srt`) and WebVTT (`vtt`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cue:
    """What is said from one time to another, in seconds."""

    start: float
    end: float
    text: str


def to_srt(cues: Iterable[Cue]) -> str:
    """Return cues as a SubRip file."""
    return "".join(f"{n}\n{block}" for n, block in enumerate(_blocks(cues, ","), 1))


def to_vtt(cues: Iterable[Cue]) -> str:
    """Return cues as a WebVTT file."""
    return "WEBVTT\n\n" + "".join(_blocks(cues, "."))


def _blocks(cues: Iterable[Cue], point: str) -> Iterator[str]:
    """Yield times and text; an empty line would end a cue, and an arrow begin one."""
    for cue in cues:
        lines = (line.strip().replace("-->", "->") for line in cue.text.splitlines())
        text = "\n".join(line for line in lines if line)
        yield f"{_time(cue.start, point)} --> {_time(cue.end, point)}\n{text}\n\n"


def _time(seconds: float, point: str) -> str:
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest:02}{point}{milliseconds:03}"
