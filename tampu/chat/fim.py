"""Fill in the middle: prompts for the text between two others.

A Modelfile's template may have a place for the suffix; else a vocabulary may have tokens for it, as
code models do: `tokenizer.ggml.fim_pre_token_id`, `..._suf_...` and `..._mid_...` in GGUF. Prefix,
suffix and the place to write follow one another in that order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tampu.chat.sandboxed_template import SandboxedTemplate
from tampu.chat.segments import Tokenizer
from tampu.chat.template_loader import PromptTemplate
from tampu.sandbox.client import ForkServerClient

if TYPE_CHECKING:
    from tampu.ml.metadata import Metadata

_KEYS = ("fim_pre_token_id", "fim_suf_token_id", "fim_mid_token_id")


class FillInTheMiddle:
    """Makes these prompts for one model."""

    def __init__(
        self, tokenizer: Tokenizer, template: SandboxedTemplate | None, marks: tuple[int, ...]
    ) -> None:
        """Use a template, or without one the tokens before, between and after the texts."""
        self._tokenizer = tokenizer
        self._template = template
        self._marks = marks

    @classmethod
    def for_model(
        cls,
        template: PromptTemplate | None,
        tokenizer: Tokenizer,
        metadata: Metadata,
        fork_server: ForkServerClient,
    ) -> FillInTheMiddle | None:
        """Return the maker of a model's prompts; None if it does not support them."""
        if template is not None and template.supports_insert:
            return cls(tokenizer, SandboxedTemplate(template, fork_server), ())
        marks = fim_tokens(metadata)
        return cls(tokenizer, None, marks) if marks else None

    def tokens(self, before: str, behind: str) -> list[int]:
        """Return the prompt to fill in the text between two others.

        Raises:
            RequestError: when the template fails.
        """
        if self._template is not None:
            prompt = self._template.render_insert(before, behind)
            return list(self._tokenizer.encode_pieces(prompt))
        begin, middle, end = self._marks
        first, second = (
            self._tokenizer.encode(text, add_special=False, parse_special=False)
            for text in (before, behind)
        )
        bos = self._tokenizer.bos
        start = [bos] if self._tokenizer.adds_bos and bos is not None else []
        return [*start, begin, *first, middle, *second, end]


def fim_tokens(metadata: Metadata) -> tuple[int, ...]:
    """Return a vocabulary's FIM tokens; empty if one is missing or outside the vocabulary."""
    size = len(metadata.strings("tokenizer.ggml.tokens", ()))
    found = (metadata.get(f"tokenizer.ggml.{key}") for key in _KEYS)
    marks = tuple(mark for mark in found if isinstance(mark, int) and 0 <= mark < size)
    return marks if len(marks) == len(_KEYS) else ()
