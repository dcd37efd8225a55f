"""The structs of requests for tokens, in Ollama's manner, in llama-server's form and in vLLM's."""

from __future__ import annotations

import msgspec

from tampu.chat.media import without_places
from tampu.engine.prompts import ChatPrompt, TextPrompt
from tampu.errors import RequestError, require
from tampu.server.ollama.requests import Message, read_messages
from tampu.server.openai.requests import ChatRequest


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """`POST /api/tokenize`: a text, or a conversation that goes through the model's template."""

    model: str
    text: str | None = None
    messages: list[Message] | None = None
    add_special: bool = True
    parse_special: bool = True
    pieces: bool = False

    def prompt(self) -> TextPrompt | ChatPrompt:
        """Return what is to be tokenized.

        Raises:
            RequestError: without a text or messages, and with both.
        """
        if (self.text is None) == (self.messages is None):
            raise RequestError("give either text or messages")
        if self.text is not None:
            return TextPrompt(self.text)
        messages, places = without_places(read_messages(self.messages))
        return ChatPrompt(messages=messages, places=places)


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """`POST /api/detokenize`."""

    model: str
    tokens: list[int]


class TokenizeContentRequest(ChatRequest, kw_only=True):
    """`POST /tokenize`, in llama-server's form with `content`, else in vLLM's.

    vLLM has `prompt`, or `messages` and more of a chat, `add_special_tokens` (unless given: of a
    prompt, not of a chat, whose template writes them) and `return_token_strs`.
    """

    content: str | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    def check(self) -> None:
        """Refuse a request without a text, or in vLLM's form with two."""
        message = "give one of content, prompt and messages"
        is_one = (self.prompt is None) != (self.messages is None)
        require(self.content is not None or is_one, message)


class DetokenizeTokensRequest(msgspec.Struct, kw_only=True):
    """`POST /detokenize`."""

    tokens: list[int]
    model: str | None = None
