"""Makes a mixture of experts of real shape with random weights: `python -m benchmarks.moe`.

A layer has the shape of one of Qwen3 30B-A3B in Q4_K_M: 128 experts, of which a token uses 8. The
file has eight layers instead of 48, and a tenth of the vocabulary, so that layers take most of the
time, as they do in the whole model. The rest is as in `benchmarks.random_models`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import gguf
from gguf import TokenType

from benchmarks.random_models import (
    QUANT_MIXES,
    Decoder,
    Planned,
    QuantMix,
    arguments_of,
    write_file,
)
from benchmarks.vocabulary import SPACE, byte_alphabet, make_words
from tampu.ml.types import GGMLType

FILE = "qwen3moe-8layers-Q4_K_M.gguf"

WORDS = 14_620
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
DECODER = Decoder(
    layers=8,
    vocabulary=256 + WORDS + len(CONTROL),
    hidden=2048,
    heads=32,
    kv_heads=4,
    head_size=128,
    feed_forward=6144,
    context=40_960,
    epsilon=1e-6,
    rope_base=1_000_000.0,
    norms=("attn_norm", "attn_q_norm", "attn_k_norm", "ffn_norm"),
    experts=128,
    expert_feed_forward=768,
)
USED_EXPERTS = 8


def plan(mix: QuantMix) -> Iterator[Planned]:
    """Yield the tensors in the order of the file."""
    table = (DECODER.vocabulary, DECODER.hidden)
    yield Planned("token_embd.weight", "token_embd", table, mix.matrix)
    yield Planned("output.weight", "output", table, mix.embedding)
    yield Planned("output_norm.weight", "norm", (DECODER.hidden,), GGMLType.F32)
    for layer in range(DECODER.layers):
        router = f"blk.{layer}.ffn_gate_inp.weight"
        yield Planned(router, "router", (DECODER.experts, DECODER.hidden), GGMLType.F32)
        yield from DECODER.plan_layer(layer, mix)


def add_metadata(writer: gguf.GGUFWriter) -> None:
    """Write the metadata of the model."""
    name = "Random Qwen3 30B-A3B, eight layers, Q4_K_M"
    DECODER.add_metadata(writer, name, QUANT_MIXES["Q4_K_M"])
    writer.add_expert_feed_forward_length(DECODER.expert_feed_forward)
    writer.add_expert_count(DECODER.experts)
    writer.add_expert_used_count(USED_EXPERTS)
    add_vocabulary(writer, DECODER.vocabulary)


def add_vocabulary(writer: gguf.GGUFWriter, rows: int, more: Sequence[str] = ()) -> None:
    """Write the made-up vocabulary, with unused tokens where a model has more rows.

    `more` are control tokens beside those that all models have.
    """
    words, control = make_words(WORDS, SPACE), [*CONTROL, *more]
    tokens = [*byte_alphabet(), *words, *control]
    unused = [f"[unused {index}]" for index in range(rows - len(tokens))]
    writer.add_vocab_size(rows)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens + unused)
    types = [(TokenType.NORMAL, 256 + WORDS), (TokenType.CONTROL, len(control))]
    types.append((TokenType.UNUSED, len(unused)))
    writer.add_token_types([kind for kind, count in types for _ in range(count)])
    writer.add_token_merges(list(_merges(tokens)))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_add_bos_token(value=False)


def _merges(tokens: list[str]) -> Iterator[str]:
    """Yield the first merge of each word."""
    known = set(tokens)
    for word in tokens[256 : 256 + WORDS]:
        cuts = (cut for cut in range(1, len(word)) if {word[:cut], word[cut:]} <= known)
        cut = next(cuts)
        yield f"{word[:cut]} {word[cut:]}"


def main() -> None:
    """Write the file."""
    arguments = arguments_of("Make a mixture of experts, to measure with.").parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    planned = plan(QUANT_MIXES["Q4_K_M"])
    write_file(out / FILE, "qwen3moe", add_metadata, planned, arguments.threads)


if __name__ == "__main__":
    main()
