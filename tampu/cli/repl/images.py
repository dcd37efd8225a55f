r"""Paths of pictures in a message: `what is in ./a.png?`, `'./my cat.jpg'`, `./my\ cat.jpg`.

A path begins with `/`, `./`, `../` or `~/`, or stands in quotes, and ends like the name of a
picture. The space in it is escaped or in quotes; without either it counts if there is such a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tampu.errors import RequestError

_BEGIN = re.compile(r"""(?<![^\s'"(])(?:(?P<quote>['"])|(?=\.{0,2}/|~/))""")
_ENDING = re.compile(r"\.(?:png|jpe?g|webp|gif|bmp)(?![\w.])", re.IGNORECASE)
_ESCAPED = re.compile(r"\\(.)")
_SPACE = re.compile(r"(?<!\\)\s")


@dataclass(frozen=True, slots=True)
class Mention:
    """A path in a text.

    Attributes:
        start: of what stands for it in the text, quotes included.
        end: likewise.
        path: that is meant.
    """

    start: int
    end: int
    path: Path

    @property
    def is_there(self) -> bool:
        """Whether there is such a file."""
        try:
            return self.path.is_file()
        except OSError:  # a name that is too long, or has a NUL
            return False


@dataclass(frozen=True, slots=True)
class Photo:
    """The file of an image, with its bytes."""

    path: Path
    content: bytes


def mentions(text: str) -> Iterator[Mention]:
    """Yield the paths of pictures in a text, in order, whether they are there or not."""
    position = 0
    while position < len(text) and (begin := _BEGIN.search(text, position)):
        found = _quoted(text, begin) if begin["quote"] else _bare(text, begin.end())
        if found is not None:
            yield found
        position = found.end if found else begin.start() + 1


def take_pictures(text: str) -> tuple[str, list[Photo], list[Path]]:
    """Return a text without its paths of pictures, the pictures, and the paths that lead nowhere.

    Those stay in the text.

    Raises:
        RequestError: for a file that is no picture, or too large.
    """
    kept, photos, missing, position = [], [], [], 0
    for mention in mentions(text):
        if not mention.is_there:
            missing.append(mention.path)
            continue
        photos.append(read_photo(mention.path))
        kept.append(text[position : mention.start])
        position = mention.end
    rest = "".join([*kept, text[position:]])
    return (" ".join(rest.split(" ")).strip() if photos else text), photos, missing


def read_photo(path: Path) -> Photo:
    """Return the picture in a file.

    Raises:
        RequestError: naming the file, if it cannot be read, is no picture, or is too large.
    """
    from tampu.vision import ImageLimits, decode  # slow to import, and seldom needed

    try:
        if path.stat().st_size > ImageLimits().size_bytes:
            raise RequestError(f"{path}: is larger than {ImageLimits().size_bytes} bytes")
        content = path.read_bytes()
        decode(content)
        return Photo(path, content)
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror}") from error
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from error


def _quoted(text: str, begin: re.Match[str]) -> Mention | None:
    end = text.find(begin["quote"], begin.end())
    inside = text[begin.end() : end]
    ending = _ENDING.search(inside)
    if end < 0 or "\n" in inside or ending is None or ending.end() != len(inside):
        return None
    if not inside.startswith(("/", "./", "../", "~/")) and not Path(inside).is_file():
        return None
    return Mention(begin.start(), end + 1, Path(inside).expanduser())


def _bare(text: str, start: int) -> Mention | None:
    """Return the shortest path that is a file; else that without a space, which is missing."""
    line_end = text.find("\n", start)
    line = text[start : len(text) if line_end < 0 else line_end]
    without_space = None
    for ending in _ENDING.finditer(line):
        shown = line[: ending.end()]
        path = Path(_ESCAPED.sub(r"\1", shown)).expanduser()
        mention = Mention(start, start + ending.end(), path)
        if mention.is_there:
            return mention
        if without_space is None and not _SPACE.search(shown):
            without_space = mention
    return without_space
