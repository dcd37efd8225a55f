"""Converts the arguments of `Engine`'s methods to requests, with the model's defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from tampu.chat.media import without_places
from tampu.chat.messages import check_tools, read_message, read_messages
from tampu.chat.output.reasoning import Think
from tampu.engine.arguments import FilePath, kind_of
from tampu.engine.input_processor import Prompt, flat
from tampu.engine.output_model import json_format
from tampu.engine.prompts import ChatPrompt, ItemsPrompt, StructuredOutput, TextPrompt
from tampu.engine.requests import Generate
from tampu.engine.steering import steering_of
from tampu.errors import RequestError
from tampu.runner.generate_options import (
    GenerateOptions,
    generate_options,
    given_options,
    token_limit,
)
from tampu.store.model import StoredDefaults
from tampu.tokenizer import Tokenizer

Message: TypeAlias = Mapping[str, Any]
File: TypeAlias = str | Path | bytes | npt.NDArray[np.uint8] | Any
"""A path, the bytes of an image, a video or a sound, RGB pixels, an image of Pillow, or the samples
of a sound: mono, 16,000 a second, between -1 and 1."""


@runtime_checkable
class _Array(Protocol):
    """An array of NumPy's, or an object that it can read as one."""

    @property
    def __array_interface__(self) -> Mapping[str, Any]: ...


@runtime_checkable
class _PillowImage(Protocol):
    """An image of Pillow's."""

    @property
    def mode(self) -> str: ...

    def convert(self, mode: str) -> Any:
        """Return the image in another mode."""


EmbeddedPrompt: TypeAlias = TextPrompt | ItemsPrompt

_EMBEDDED = ("content", "images", "audio")  # of a message that is embedded
_ARRAYS = {
    "images": "RGB pixels, uint8, (height, width, 3)",
    "audio": "samples, float32, (n,), mono, 16,000 a second, between -1 and 1",
}
_TOOLS = kind_of(Sequence[Message] | None)
_THINK = kind_of(Think)


class PythonRequests:
    """Builds the requests of one model from the arguments of Python functions."""

    def __init__(self, defaults: StoredDefaults, tokenizer: Tokenizer, context: int) -> None:
        """Build requests whose options replace the model's own defaults.

        Those without a limit have that of this context, so that every answer ends.
        """
        self._parameters = given_options(defaults.parameters)
        self._defaults = defaults
        self._tokenizer = tokenizer
        self._limit = token_limit(context)

    def plain(self, prompt: Prompt, given: Mapping[str, object]) -> Generate:
        """Return the request for the continuation of a prompt."""
        tokens = self._tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        values = {**self._parameters, **given}
        if "format" in values:
            values["format"] = json_format(values["format"])
        return Generate(items_prompt(tokens), self._options(values))

    def chat(self, messages: Sequence[Message], given: Mapping[str, object]) -> Generate:
        """Return the request for the next message."""
        values = {**self._parameters, **given}
        chat = self.conversation(messages, values)
        structure = None
        if "format" in values:
            structure = StructuredOutput(format=json_format(values.pop("format")))
        return Generate(chat, self._options(values), structure)

    def _options(self, values: Mapping[str, object]) -> GenerateOptions:
        if "steering" in values:
            values = {**values, "steering": steering_of(values["steering"])}
        options = generate_options(values)
        if options.max_tokens is not None:
            return options
        return msgspec.structs.replace(options, max_tokens=self._limit)

    def conversation(self, messages: Sequence[Message], options: dict[str, Any]) -> ChatPrompt:
        """Return a conversation; `tools` and `think` are removed from the options.

        Raises:
            RequestError: for a message or tool that is wrong.
        """
        tools, think = options.pop("tools", None), options.pop("think", None)
        _TOOLS.check(tools, "tools")
        _THINK.check(think, "think")
        check_tools(tools or ())
        begun = self._defaults.conversation(read_messages(messages, read_file))
        bare, places = without_places(begun)
        return ChatPrompt(messages=bare, places=places, tools=tools and tuple(tools), think=think)


def items_prompt(prompt: Sequence[Any]) -> ItemsPrompt:
    """Return token ids, and media that this process has prepared, as a prompt."""
    return ItemsPrompt(tuple(int(i) if isinstance(i, np.integer) else i for i in prompt))


def embedded_prompts(given: str | Sequence[Prompt | Message]) -> tuple[EmbeddedPrompt, ...]:
    """Return texts, token ids, and texts with images and sounds as inputs of `Embed`.

    Raises:
        RequestError: naming what is wrong with images and sounds.
    """
    held = [given] if isinstance(given, str) else given
    return tuple(embedded_prompt(each, f"texts[{index}]") for index, each in enumerate(held))


def embedded_prompt(given: Prompt | Message, where: str) -> EmbeddedPrompt:
    """Return one input as `embedded_prompts` does; `where` is its place for errors."""
    if isinstance(given, str):
        return TextPrompt(given)
    if not isinstance(given, Mapping):
        return items_prompt(flat(given))
    if unknown := sorted(given.keys() - _EMBEDDED):
        known = ", ".join(_EMBEDDED)
        raise RequestError(f"{where}.{unknown[0]:.50} is not known: an input has {known}")
    message = read_message({"role": "user", **given}, where, read_file)
    return TextPrompt.of_parts([*message.get("media", ()), message["content"]])


def read_file(file: File, where: str, field: str = "") -> bytes | npt.NDArray[Any]:
    """Return the bytes of a file, RGB pixels, uint8, (height, width, 3), or samples, float32, (n,).

    Args:
        file: as `File`.
        where: the argument, for messages.
        field: `images` or `audio`, if only such a file may be there, for messages.

    Raises:
        RequestError: naming a file that cannot be read; for anything else.
    """
    if isinstance(file, str | Path):
        kind_of(FilePath).check(file, where)
        return _content(Path(file), where)
    if isinstance(file, bytes | bytearray | memoryview):
        return bytes(file)
    if not isinstance(file, _Array):
        wanted = "a path, the bytes of a file, an image, or samples"
        raise RequestError(f"{where} must be {wanted}, not {type(file).__name__}")
    if isinstance(file, _PillowImage) and file.mode != "RGB":
        file = file.convert("RGB")
    pixels: npt.NDArray[Any] = np.asarray(file)
    if pixels.ndim == 1 and pixels.dtype in (np.float32, np.float64) and pixels.size:
        if not np.isfinite(pixels).all():
            raise RequestError(f"{where} has samples that are not numbers")
        return np.ascontiguousarray(pixels, np.float32)
    if pixels.dtype != np.uint8 or pixels.shape[2:] != (3,) or not pixels.size:
        found = f"{pixels.dtype}, {pixels.shape}"
        wanted = _ARRAYS.get(field, " or ".join(_ARRAYS.values()))
        raise RequestError(f"{where} must be {wanted}, not {found}")
    return pixels


def _content(path: Path, where: str) -> bytes:
    shown = f"{str(path)!r:.200}"
    try:
        if not path.is_file():
            raise RequestError(f"{where}: there is no file {shown}")
        return path.read_bytes()
    except OSError as error:
        raise RequestError(f"{where}: {shown} cannot be read: {error.strerror}") from error
