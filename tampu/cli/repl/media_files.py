r"""Paths of images and sounds in a message: `see ./a.png`, `'./my cat.jpg'`, `./my\ voice.wav`.

A path starts with `/`, `./`, `../` or `~/`, or is in quotes, and ends with the suffix of an image
or a sound. Spaces in it are escaped or in quotes; otherwise they belong to it if there is such a
file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tampu.errors import RequestError

_BEGIN = re.compile(r"""(?<![^\s'"(])(?:(?P<quote>['"])|(?=\.{0,2}/|~/))""")
_ENDING = re.compile(
    r"\.(?:png|jpe?g|webp|gif|bmp|(?P<sound>wav|flac|mp3|ogg|oga|opus|aac|m4a|mka|mkv|webm))(?![\w.])",
    re.IGNORECASE,
)
_ESCAPED = re.compile(r"\\(.)")
_REMEDY = (
    "Its projector (mmproj) is missing: create a model with it in a second FROM of a Modelfile"
)
_SPACE = re.compile(r"(?<!\\)\s")


class NeedsProjector(Protocol):
    """Says whether a model has the encoder of images, or of sounds, in a file that is missing."""

    def __call__(self, *, is_sound: bool) -> bool:
        """Return it."""


@dataclass(frozen=True, slots=True)
class Mention:
    """A path in a text.

    Attributes:
        start: where it starts in the text, with its quotes.
        end: where it ends.
        path: the path, unescaped.
        is_sound: whether it has the suffix of a sound, not of an image.
    """

    start: int
    end: int
    path: Path
    is_sound: bool

    @property
    def exists(self) -> bool:
        """Whether it is a file."""
        try:
            return self.path.is_file()
        except OSError:  # a name that is too long
            return False


@dataclass(frozen=True, slots=True)
class MediaFile:
    """A file of an image or a sound, and its bytes."""

    path: Path
    content: bytes
    is_sound: bool


def mentions(text: str) -> Iterator[Mention]:
    """Yield the paths of images and sounds in a text, in order, whether they exist or not."""
    position = 0
    while position < len(text) and (begin := _BEGIN.search(text, position)):
        found = _quoted(text, begin) if begin["quote"] else _bare(text, begin.end())
        if found is not None:
            yield found
        position = found.end if found else begin.start() + 1


def take_files(
    text: str, *, can_see: bool, can_hear: bool, needs_projector: NeedsProjector
) -> tuple[str, list[MediaFile], list[tuple[Path, str]]]:
    """Return a text without the paths of the files that a model takes, and these files.

    The third value is the other paths, which stay in the text, each with what to say of it.

    Raises:
        RequestError: for a file that is not an image or a sound, or too large.
    """
    kept, files, left, position = [], [], [], 0
    for mention in mentions(text):
        if not mention.exists:
            left.append((mention.path, "no such file; the model gets its name only"))
            continue
        if not (can_hear if mention.is_sound else can_see):
            kind = "sounds" if mention.is_sound else "images"
            why = f"the model takes no {kind}; it gets the name only"
            if needs_projector(is_sound=mention.is_sound):
                why += f". {_REMEDY}"
            left.append((mention.path, why))
            continue
        files.append(read_media(mention))
        kept.append(text[position : mention.start])
        position = mention.end
    rest = "".join([*kept, text[position:]])
    return (" ".join(rest.split(" ")).strip() if files else text), files, left


def read_media(mention: Mention) -> MediaFile:
    """Read and check the file of a mention.

    Raises:
        RequestError: with its path, if it cannot be read, is not what its suffix says, or is too
            large.
    """
    path = mention.path
    try:
        content = _read_sound(path) if mention.is_sound else _read_image(path)
        return MediaFile(path, content, mention.is_sound)
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror}") from error
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from error


def _read_image(path: Path) -> bytes:
    from tampu.vision import ImageLimits
    from tampu.vision.decoding import decode  # slow to import, and seldom needed

    content = _read(path, ImageLimits().size_bytes)
    decode(content)
    return content


def _read_sound(path: Path) -> bytes:
    """Return a sound; the model's process decodes it."""
    from tampu.audio.formats import DEFAULT_AUDIO_LIMITS, check_audio

    content = _read(path, DEFAULT_AUDIO_LIMITS.size_bytes)
    check_audio(content)
    return content


def _read(path: Path, limit: int) -> bytes:
    if path.stat().st_size > limit:
        raise RequestError(f"is larger than {limit} bytes")
    return path.read_bytes()


def _quoted(text: str, begin: re.Match[str]) -> Mention | None:
    end = text.find(begin["quote"], begin.end())
    inside = text[begin.end() : end]
    ending = _ENDING.search(inside)
    if end < 0 or "\n" in inside or ending is None or ending.end() != len(inside):
        return None
    if not inside.startswith(("/", "./", "../", "~/")) and not Path(inside).is_file():
        return None
    return Mention(begin.start(), end + 1, Path(inside).expanduser(), bool(ending["sound"]))


def _bare(text: str, start: int) -> Mention | None:
    """Return the shortest path that is a file; else the one without spaces, which is missing."""
    line_end = text.find("\n", start)
    line = text[start : len(text) if line_end < 0 else line_end]
    without_space = None
    for ending in _ENDING.finditer(line):
        shown = line[: ending.end()]
        path = Path(_ESCAPED.sub(r"\1", shown)).expanduser()
        mention = Mention(start, start + ending.end(), path, bool(ending["sound"]))
        if mention.exists:
            return mention
        if without_space is None and not _SPACE.search(shown):
            without_space = mention
    return without_space
