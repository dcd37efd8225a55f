"""Images, videos and sounds in requests: base64 and data URIs, as clients write them."""

from __future__ import annotations

import binascii
import re
from typing import Protocol
from urllib.parse import unquote_to_bytes

from tampu.chat.media import MediaFile
from tampu.errors import RequestError, require

# The bytes decide what a file is; without a type, or with this one, they are looked at too.
_ANY = "application/octet-stream"
_PARAMETERS = r"(?:\s*;\s*[\w.+-]+=(?:[^\s;,\"]*|\"[^\",]*\"))*\s*;\s*base64\s*,"
_IMAGE_URI = re.compile(
    rf"data:\s*(?:image/(?:x-)?(?:p?jpe?g|png|apng|webp|gif|bmp|ms-bmp)|{_ANY})?{_PARAMETERS}",
    re.IGNORECASE,
)
_VIDEO_URI = re.compile(rf"data:\s*(?:video/[a-z0-9.+-]+|{_ANY})?{_PARAMETERS}", re.IGNORECASE)
_AUDIO_URI = re.compile(
    rf"data:\s*(?:audio/[a-z0-9.+-]+|video/(?:webm|mp4)|{_ANY})?{_PARAMETERS}", re.IGNORECASE
)
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_DATA = "data:"
_STANDARD = bytes.maketrans(b"-_", b"+/")
_SPACE = b" \t\r\n\v\f"


class ImageSource(Protocol):
    """Puts images where requests name them by their addresses."""

    async def fill(self, given: object) -> None:
        """Put images where items, or the contents of messages, have their addresses.

        Raises:
            RequestError: for an address that is not allowed, or not one of an image.
        """
        ...


def decode_base64(text: str | bytes) -> bytes:
    r"""Return the bytes that a base64 text stands for.

    It may have line breaks and spaces, lack the `=` at its end, and be of the alphabet for URLs
    (`-` and `_`).

    Raises:
        ValueError: for any other text.
    """
    try:
        return binascii.a2b_base64(text, strict_mode=True)  # ten times as fast as what follows
    except binascii.Error:
        pass
    data = text.encode("ascii") if isinstance(text, str) else text
    data = data.translate(_STANDARD, _SPACE)
    digits = data.rstrip(b"=")
    padding = -len(digits) % 4
    if len(data) - len(digits) not in (0, padding):
        raise ValueError("the = at the end are too many, or too few")
    return binascii.a2b_base64(digits + b"=" * padding, strict_mode=True)


def decode_image(text: str, where: str, *, is_uri: bool = False) -> MediaFile:
    """Return an image, given in base64 or as a data URI.

    `is_uri`: the field may have the address of an image, where a setting allows it.

    Raises:
        RequestError: for anything else, with `where`.
    """
    if _is_url(text):
        setting = " (see TAMPU_IMAGE_URLS)" if is_uri else ""
        raise RequestError(f"{where}: URLs are not fetched{setting}: send a data URI")
    if not _is_data_uri(text):
        return _decoded(text, where, "image")
    match = _IMAGE_URI.match(text)
    if match is None:
        raise RequestError(f"{where}: expected data:image/png;base64,... or jpeg, webp, gif, bmp")
    return _decoded_uri(text, match, where, "image")


def decode_video(url: str, where: str) -> MediaFile:
    """Return a video, given as a data URI.

    Raises:
        RequestError: for anything else, with `where`.
    """
    match = _VIDEO_URI.match(url)
    if match is None:
        raise RequestError(
            f"{where}: a video must be a data URI, data:video/mp4;base64,...: addresses are not "
            "fetched"
        )
    return _decoded_uri(url, match, where, "video")


def decode_audio(text: str, where: str) -> MediaFile:
    """Return a sound, given in base64 or as a data URI.

    Raises:
        RequestError: for anything else, with `where`.
    """
    if _is_url(text):
        raise RequestError(f"{where}: URLs of sounds are not fetched: send base64")
    if not _is_data_uri(text):
        return _decoded(text, where, "sound")
    match = _AUDIO_URI.match(text)
    if match is None:
        raise RequestError(f"{where}: expected data:audio/wav;base64,... or another sound")
    return _decoded_uri(text, match, where, "sound")


def _is_url(text: str) -> bool:
    return _URL.match(text) is not None


def _is_data_uri(text: str) -> bool:
    return text[: len(_DATA)].lower() == _DATA


def _decoded_uri(text: str, match: re.Match[str], where: str, what: str) -> MediaFile:
    data = text[match.end() :]
    return _decoded(unquote_to_bytes(data) if "%" in data else data, where, what)


def _decoded(text: str | bytes, where: str, what: str) -> MediaFile:
    try:
        data = decode_base64(text)
    except ValueError as error:
        raise RequestError(f"invalid base64 in {where}") from error
    require(data, f"{where}: the {what} is empty")
    return MediaFile(data, where, is_audio=what == "sound")
