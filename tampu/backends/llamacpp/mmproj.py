"""Pictures for llama.cpp, which takes them in prompts that are text and that it tokenises itself.

Tampu's prompts are tokens, so that nobody's text becomes a control token. The two are brought
together by asking llama.cpp first how it would tokenise the text between pictures: if the tokens
are not the very ones of the prompt, the request is refused. Files are decoded in tampu's sandbox;
what llama.cpp reads is always the same plain format.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tampu.backends.llamacpp.request import error_of
from tampu.backends.llamacpp.server import LlamaServer, Message
from tampu.chat.images import Item
from tampu.errors import ComputeError, RequestError
from tampu.vision.pixels import RGBImage

_LENGTHS = 256  # that are remembered
_PIXELS = 4096 * 4096  # they travel as text, several copies of which are in memory


class Decoder(Protocol):
    """Makes pictures of files."""

    def prepare(self) -> None:
        """Start what it needs."""
        ...

    def decode(self, data: bytes) -> RGBImage:
        """Return the picture in a file, RGB (height, width, 3)."""
        ...


class TextTokenizer(Protocol):
    """What prompts as text need of a tokenizer."""

    bos: int | None
    adds_bos: bool
    adds_eos: bool

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of tokens, with that of control tokens."""
        ...


@dataclass(frozen=True, slots=True)
class LlamaImage:
    """A picture as llama.cpp takes it.

    Attributes:
        data: a file in base64.
        length: how many inputs it takes.
        tokens: that stand for it in the prompt: none, llama.cpp puts its own.
    """

    data: str
    length: int
    tokens: tuple[int, ...] = ()

    def __len__(self) -> int:
        return self.length


class MultimodalProjector:
    """What lets a model in llama.cpp see."""

    def __init__(
        self, server: LlamaServer, tokenizer: TextTokenizer, decoder: Decoder, context: int
    ) -> None:
        """Take the server, which has a projector, and the length of its context."""
        self._server = server
        self._tokenizer = tokenizer
        self._decoder = decoder
        self._filler = "1\n" * (2 * context)
        self._mark: str = server.ask("/props")["media_marker"]
        self._lengths: dict[tuple[int, ...], int] = {}

    def prepare(self) -> None:
        """Start what decodes files, without waiting for it."""
        self._decoder.prepare()

    def look(self, file: bytes) -> LlamaImage:
        """Return the picture in an image file.

        Raises:
            RequestError: as `SandboxedDecoder.decode`, and for very large ones.
        """
        picture = self._decoder.decode(file)
        height, width, _ = picture.shape
        if height * width > _PIXELS:
            raise RequestError(
                f"the image has {height * width} pixels; with the llama.cpp engine it may have "
                f"{_PIXELS}: make it smaller"
            )
        header = f"P6 {width} {height} 255\n".encode()
        data = base64.b64encode(header + picture.tobytes()).decode()
        size = (height, width)
        if size not in self._lengths:
            if len(self._lengths) >= _LENGTHS:
                self._lengths.clear()
            self._lengths[size] = self._length(data)
        return LlamaImage(data, self._lengths[size])

    def prompt(self, items: Sequence[Item]) -> Message:
        """Return a prompt with pictures in it.

        Raises:
            RequestError: if llama.cpp would not read it as it is meant.
        """
        pictures = [item for item in items if isinstance(item, LlamaImage)]
        texts: list[list[int]] = [[]]
        for item in items:
            if isinstance(item, LlamaImage):
                texts.append([])
            else:
                texts[-1].append(item)
        if self._tokenizer.adds_bos:
            if texts[0][:1] != [self._tokenizer.bos]:
                raise _misread("it does not begin with the token that llama.cpp puts in front")
            texts[0] = texts[0][1:]
        if self._tokenizer.adds_eos:
            raise _misread("llama.cpp would end it with a token that ends texts")
        return {
            "prompt_string": self._mark.join(map(self._text, texts)),
            "multimodal_data": [picture.data for picture in pictures],
        }

    def _text(self, tokens: Sequence[int]) -> str:
        """Return the text that llama.cpp reads as these tokens."""
        text = self._tokenizer.decode(tokens, special=True)
        for each in (text, f" {text}"):
            if self._mark not in each and self._read(each) == list(tokens):
                return each
        raise _misread("llama.cpp would read a text in it as other tokens, such as a control token")

    def _read(self, text: str) -> list[int]:
        asked = {"content": text, "add_special": False, "parse_special": True}
        found: list[int] = self._server.ask("/tokenize", asked)["tokens"]
        return found

    def _length(self, data: str) -> int:
        """Return how many inputs a picture takes.

        llama.cpp counts those of a prompt that is too long, and computes nothing of it.
        """
        without, with_it = (
            self._count({"prompt_string": f"{mark}{self._filler}", "multimodal_data": pictures})
            for mark, pictures in (("", []), (self._mark, [data]))
        )
        return with_it - without

    def _count(self, prompt: Mapping[str, Any]) -> int:
        answer = self._server.ask("/completion", {"prompt": prompt, "n_predict": 0})
        error = answer.get("error", {})
        if "n_prompt_tokens" not in error:
            raise error_of(error) if error else ComputeError("llama.cpp does not count a picture")
        return int(error["n_prompt_tokens"])


def _misread(reason: str) -> RequestError:
    return RequestError(
        f"with the llama.cpp engine this prompt cannot have a picture: {reason}. "
        "Change the text, or use the native engine"
    )
