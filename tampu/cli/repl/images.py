r"""Paths of images in a message: `what is in ./a.png?`, `'./my cat.jpg'`, `./my\ cat.jpg`.

A path starts with `/`, `./`, `../` or `~/`, or is in quotes, and ends with the suffix of an image.
Spaces in it are escaped or in quotes; otherwise they belong to it if there is such a file.
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
        start: where it starts in the text, with its quotes.
        end: where it ends.
        path: the path, unescaped.
    """

    start: int
    end: int
    path: Path

    @property
    def exists(self) -> bool:
        """Whether it is a file."""
        try:
            return self.path.is_file()
        except OSError:  # a name that is too long
            return False


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image file and its bytes."""

    path: Path
    content: bytes


def mentions(text: str) -> Iterator[Mention]:
    """Yield the paths of images in a text, in order, whether they exist or not."""
    position = 0
    while position < len(text) and (begin := _BEGIN.search(text, position)):
        found = _quoted(text, begin) if begin["quote"] else _bare(text, begin.end())
        if found is not None:
            yield found
        position = found.end if found else begin.start() + 1


def take_images(text: str) -> tuple[str, list[ImageFile], list[Path]]:
    """Return a text without the paths of its images, the images, and the missing paths.

    Missing paths stay in the text.

    Raises:
        RequestError: for a file that is not an image, or too large.
    """
    kept, images, missing, position = [], [], [], 0
    for mention in mentions(text):
        if not mention.exists:
            missing.append(mention.path)
            continue
        images.append(read_image(mention.path))
        kept.append(text[position : mention.start])
        position = mention.end
    rest = "".join([*kept, text[position:]])
    return (" ".join(rest.split(" ")).strip() if images else text), images, missing


def read_image(path: Path) -> ImageFile:
    """Read and check an image file.

    Raises:
        RequestError: with its path, if it cannot be read, is not an image, or is too large.
    """
    from tampu.vision import ImageLimits
    from tampu.vision.decoding import decode  # slow to import, and seldom needed

    try:
        if path.stat().st_size > ImageLimits().size_bytes:
            raise RequestError(f"{path}: is larger than {ImageLimits().size_bytes} bytes")
        content = path.read_bytes()
        decode(content)
        return ImageFile(path, content)
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
    """Return the shortest path that is a file; else the one without spaces, which is missing."""
    line_end = text.find("\n", start)
    line = text[start : len(text) if line_end < 0 else line_end]
    without_space = None
    for ending in _ENDING.finditer(line):
        shown = line[: ending.end()]
        path = Path(_ESCAPED.sub(r"\1", shown)).expanduser()
        mention = Mention(start, start + ending.end(), path)
        if mention.exists:
            return mention
        if without_space is None and not _SPACE.search(shown):
            without_space = mention
    return without_space
