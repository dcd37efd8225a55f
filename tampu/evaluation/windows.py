"""A text as windows of tokens, as llama.cpp's perplexity tool forms them.

The text is encoded as a whole, without control tokens, and cut into windows of `context` tokens
that do not overlap; what is left at the end is not used. Where the tokenizer adds a BOS token, it
replaces the first token of each window. Only the second half of a window is scored, so that each
scored token has at least half a window before it: the tokens at `context // 2 + 1` and after, given
all tokens of the window before them. A text must have two windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tampu.errors import RequestError

DEFAULT_CONTEXT = 512
MIN_CONTEXT = 8


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a text.

    Attributes:
        tokens: I32, (windows, context).
        text: the tokens as the text has them, before BOS replaced some: I32, (windows, context).
        first: the index of the first scored token of each window.
    """

    tokens: npt.NDArray[np.int32]
    text: npt.NDArray[np.int32]
    first: int

    @property
    def scored(self) -> npt.NDArray[np.int32]:
        """The scored tokens of all windows, in order."""
        return self.tokens[:, self.first :].reshape(-1)

    @property
    def per_window(self) -> int:
        """How many tokens of each window are scored."""
        return int(self.tokens.shape[1]) - self.first


def windows(
    tokens: Sequence[int], context: int, bos: int | None, limit: int | None = None
) -> Windows:
    """Cut a text's tokens, BOS at the start included, into windows.

    Args:
        tokens: of the whole text.
        context: the tokens of a window.
        bos: the token that begins each window; None: the tokenizer adds none.
        limit: the maximum number of windows; None: all.

    Raises:
        RequestError: if the text is too short, or the context.
    """
    if context < MIN_CONTEXT:
        raise RequestError(f"context must be {MIN_CONTEXT} or more, not {context}")
    if len(tokens) < 2 * context:
        raise RequestError(
            f"the text is too short: it has {len(tokens)} tokens, and two windows of {context} "
            f"need {2 * context}; give a longer text or a smaller context"
        )
    count = len(tokens) // context
    if limit is not None:
        count = min(count, limit)
    text = np.array(tokens[: count * context], np.int32).reshape(count, context)
    own = text.copy()
    if bos is not None:
        own[:, 0] = bos
    return Windows(own, text, context // 2 + 1)
