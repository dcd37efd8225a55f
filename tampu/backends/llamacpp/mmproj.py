"""Images for llama.cpp, which takes them in text prompts only and tokenizes these itself.

Prompts of tampu are tokens, so that no text of a user becomes a control token. So llama.cpp is
asked first how it tokenizes the text between images: unless the tokens are exactly those of the
prompt, the request is refused. Files are decoded in tampu's sandbox; llama.cpp gets one plain
format.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tampu.backends.llamacpp.request import error_of
from tampu.backends.llamacpp.server import LlamaServer, Message
from tampu.chat.media import Item
from tampu.errors import ComputeError, RequestError
from tampu.tokenizer import Tokenizer
from tampu.vision.sandboxed import SandboxedDecoder

_MAX_LENGTHS = 256  # remembered
_MAX_PIXELS = 4096 * 4096  # an image is sent as text, of which there are several copies


@dataclass(frozen=True, slots=True)
class LlamaImage:
    """An image as llama.cpp takes it.

    Attributes:
        data: a file in base64.
        length: the number of its inputs.
        tokens: its placeholders in the prompt: none, llama.cpp adds its own.
    """

    data: str
    length: int
    tokens: tuple[int, ...] = ()

    def __len__(self) -> int:
        return self.length


class MultimodalProjector:
    """Encodes images for a model in llama.cpp."""

    def __init__(
        self, server: LlamaServer, tokenizer: Tokenizer, decoder: SandboxedDecoder, context: int
    ) -> None:
        """Use a server that has loaded a projector, with slots of this context length."""
        self._server = server
        self._tokenizer = tokenizer
        self._decoder = decoder
        self._filler = "1\n" * (2 * context)
        self._mark: str = server.request("/props")["media_marker"]
        self._lengths: dict[tuple[int, ...], int] = {}

    def prepare(self) -> None:
        """Start the process that decodes files, without waiting for it."""
        self._decoder.prepare()

    def prepare_image(self, file: bytes) -> LlamaImage:
        """Return the image in a file.

        Raises:
            RequestError: as `SandboxedDecoder.decode`, and for very large ones.
        """
        pixels = self._decoder.decode(file)
        height, width, _ = pixels.shape
        if height * width > _MAX_PIXELS:
            raise RequestError(
                f"the image has {height * width} pixels; the limit of the llama.cpp "
                f"engine is {_MAX_PIXELS}: make it smaller"
            )
        header = f"P6 {width} {height} 255\n".encode()
        data = base64.b64encode(header + pixels.tobytes()).decode()
        size = (height, width)
        if size not in self._lengths:
            if len(self._lengths) >= _MAX_LENGTHS:
                self._lengths.clear()
            self._lengths[size] = self._length(data)
        return LlamaImage(data, self._lengths[size])

    def prompt(self, items: Sequence[Item]) -> Message:
        """Return a prompt that contains images.

        Raises:
            RequestError: if llama.cpp would read it as other tokens.
        """
        images = [item for item in items if isinstance(item, LlamaImage)]
        texts: list[list[int]] = [[]]
        for item in items:
            if isinstance(item, LlamaImage):
                texts.append([])
            else:
                texts[-1].append(item)
        if self._tokenizer.adds_bos:
            if texts[0][:1] != [self._tokenizer.bos]:
                raise _misread("it does not begin with the begin token, which llama.cpp adds")
            texts[0] = texts[0][1:]
        if self._tokenizer.adds_eos:
            raise _misread("llama.cpp would add an end token")
        return {
            "prompt_string": self._mark.join(map(self._text, texts)),
            "multimodal_data": [image.data for image in images],
        }

    def _text(self, tokens: Sequence[int]) -> str:
        """Return the text that llama.cpp reads as these tokens."""
        text = self._tokenizer.decode(tokens, special=True)
        for each in (text, f" {text}"):
            if self._mark not in each and self._read(each) == list(tokens):
                return each
        raise _misread("llama.cpp would read a text in it as other tokens, such as a control token")

    def _read(self, text: str) -> list[int]:
        body = {"content": text, "add_special": False, "parse_special": True}
        found: list[int] = self._server.request("/tokenize", body)["tokens"]
        return found

    def _length(self, data: str) -> int:
        """Return how many inputs an image takes.

        llama.cpp counts the inputs of a prompt that is too long, and computes nothing.
        """
        without, with_it = (
            self._count({"prompt_string": f"{mark}{self._filler}", "multimodal_data": images})
            for mark, images in (("", []), (self._mark, [data]))
        )
        return with_it - without

    def _count(self, prompt: Mapping[str, Any]) -> int:
        response = self._server.request("/completion", {"prompt": prompt, "n_predict": 0})
        error = response.get("error", {})
        if "n_prompt_tokens" not in error:
            raise (error_of(error) if error else ComputeError("llama.cpp reports no image length"))
        return int(error["n_prompt_tokens"])


def _misread(reason: str) -> RequestError:
    return RequestError(
        f"the llama.cpp engine cannot put an image into this prompt: {reason}. "
        "Change the text, or use the native engine"
    )
