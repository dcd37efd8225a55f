"""Models that say what they are told to, token by token: the next token depends on the last alone.

The hidden state is the last token's own place in the vocabulary; attention and the layers add
nothing, and the output is a table of what follows what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from support.tiny_model import EOS, VOCABULARY, Tiny, letter_token, tiny_weights, write_tiny

FIM = ("<PRE>", "<SUF>", "<MID>")


def write_scripted(
    path: Path,
    script: Sequence[str],
    *,
    repeats: int | None = None,
    answers: Mapping[str, str] | None = None,
    template: str | None = None,
    context: int = 512,
    can_insert: bool = False,
    adds_space: bool = True,
) -> Path:
    """Write a model that says the pieces of a script whatever it is asked, each a token.

    Args:
        path: of the file.
        script: the pieces, no two of them the same; a space at the beginning is one.
        repeats: how many of the last pieces are said again and again; None: the answer ends.
        answers: what it says instead when the prompt ends with a letter, by that letter.
        template: its chat template.
        context: of which length it is.
        can_insert: whether it has tokens for filling in the middle.
        adds_space: whether its tokenizer puts a space in front of texts.
    """
    answers = answers or {}
    pieces = [*script, *answers.values(), *(FIM if can_insert else ())]
    size = VOCABULARY + len(pieces)
    tiny = Tiny(
        layers=1, embedding=size, heads=1, kv_heads=1, head_dim=16, feed_forward=32,
        vocabulary=size, context=context,
        keys={"attention.value_length": 16, "rope.dimension_count": 16},  # llama.cpp wants them
    )  # fmt: skip
    weights = tiny_weights(tiny)
    for name, values in weights.items():
        if name.endswith(("attn_output.weight", "ffn_down.weight")):
            values[:] = 0
    weights["token_embd.weight"] = np.eye(size, dtype=np.float32)
    weights["output_norm.weight"] = np.ones(size, np.float32)
    table = weights["output.weight"] = _table(size, len(script), repeats)
    for place, letter in enumerate(answers, VOCABULARY + len(script)):
        table[:, [letter_token(letter), place]] = 0.0
        table[place, letter_token(letter)] = table[EOS, place] = 1.0
    marks = {
        f"tokenizer.ggml.fim_{name}_token_id": VOCABULARY + len(script) + len(answers) + place
        for place, name in enumerate(("pre", "suf", "mid") if can_insert else ())
    }
    return write_tiny(
        path,
        tiny,
        weights=weights,
        template=template,
        pieces=[piece.replace(" ", "\u2581") for piece in pieces],
        metadata={**marks, "tokenizer.ggml.add_space_prefix": adds_space},
    )


def _table(size: int, length: int, repeats: int | None) -> npt.NDArray[np.float32]:
    """Return the output's weights: a row for each token, a column for the one before it."""
    table = np.zeros((size, size), np.float32)
    table[VOCABULARY] = 1.0
    for place in range(length):
        is_last = place == length - 1
        following = VOCABULARY + place + 1
        if is_last:
            following = EOS if repeats is None else VOCABULARY + length - repeats
        table[:, VOCABULARY + place] = 0.0
        table[following, VOCABULARY + place] = 1.0
    return table
