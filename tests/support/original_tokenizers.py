"""The original tokenizers of each family, trained small, and the metadata of a GGUF file of each.

The metadata has what llama.cpp's converter writes. `encode` is the original library's, and nothing
of ours.
"""

from __future__ import annotations

import argparse
import ast
import functools
import inspect
import io
import json
import re
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import sentencepiece
from tokenizers import (
    AddedToken,
    BertWordPieceTokenizer,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from tampu.ml.gguf import Metadata

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + END
QWEN2 = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + END
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = f"{_UPPER}*{_LOWER}+|{_UPPER}+{_LOWER}*" + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + END
GPT4O = (
    f"{_UPPER}*{_LOWER}+{CONTRACTION}?|{_UPPER}+{_LOWER}*{CONTRACTION}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + END
)
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + END,
)

# How each model's own tokenizer.json cuts a text into words; `None` is the GPT-2 expression that
# the library has built in.
STAGES: dict[str, Sequence[pre_tokenizers.PreTokenizer | str | None]] = {
    "llama-bpe": [LLAMA3],
    "qwen2": [QWEN2],
    "tekken": [TEKKEN],
    "gpt-4o": [GPT4O],
    "gpt-2": [None],
    "refact": [pre_tokenizers.Digits(individual_digits=True), None],
    "deepseek-v3": [*DEEPSEEK3],
}
WHOLE_WORDS = {"llama-bpe", "tekken"}

SPECIALS = ["<|begin|>", "<|end|>", "<|eot_id|>", "<|eot_id|><|more|>", "<s>", "[X]"]
USER_DEFINED_TOKENS = ["<tool>", "<tool_call>", "    ", "\n\n\n", "é!"]


@dataclass(frozen=True)
class Original:
    """A reference: a file's metadata and what the original makes of a text."""

    metadata: Metadata
    encode: Callable[[str, bool], list[int]]  # text, whether special tokens are parsed
    decode: Callable[[list[int]], str]
    specials: Sequence[str]


@functools.cache
def corpus() -> tuple[str, ...]:
    """Return a few thousand lines of code and prose, with a little of other scripts."""
    lines = [line for m in (argparse, ast, inspect, typing) for line in _lines(m)]
    others = ["Zażółć gęślą jaźń 你好世界 🙂", "Привет, мир! شكرا ", "日本語のテキスト 12345 ½"]
    return (*lines, *others * 20)


def _lines(module: object) -> list[str]:
    return inspect.getsource(module).split("\n")  # type: ignore[arg-type]


def _keys(model: str, tokens: Sequence[str], types: Sequence[int]) -> dict[str, typing.Any]:
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": np.array(types, dtype=np.int32),
    }


@functools.cache
def _merges() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Train a byte-level BPE that merges across what pre-tokenizers separate.

    A wrong pre-tokenizer then gives other tokens, which it might not with a vocabulary of its own.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[^a-z]*[a-z]*[^a-z]{0,5}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=3000,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    numbers = [f"{number} {number * 7919}" for number in range(0, 4000, 3)]
    tokenizer.train_from_iterator(["\n".join([*corpus(), *numbers])], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [(left, right) for left, right in model["merges"]]


@functools.cache
def byte_level(pre: str) -> Original:
    """Return a byte-level BPE with the words of the pre-tokenizer `pre`."""
    stages = [
        pre_tokenizers.Split(Regex(stage), "isolated") if isinstance(stage, str) else stage
        for stage in STAGES[pre]
    ]
    gpt2 = stages[-1] is None
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=gpt2)
    words = pre_tokenizers.Sequence([*filter(None, stages), last])
    vocabulary, merges = _merges()
    if pre in WHOLE_WORDS:  # whole words count there: make some that no merge leads to
        merges = [merge for index, merge in enumerate(merges) if index % 7]
    whole = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre in WHOLE_WORDS))
    whole.pre_tokenizer = words
    whole.decoder = decoders.ByteLevel()
    whole.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIALS])
    whole.add_tokens([AddedToken(t, normalized=False) for t in USER_DEFINED_TOKENS])

    ids = whole.get_vocab(with_added_tokens=True)
    tokens = sorted(ids, key=lambda token: ids[token])
    types = [
        CONTROL if token in SPECIALS else USER_DEFINED if token in USER_DEFINED_TOKENS else NORMAL
        for token in tokens
    ]
    keys = _keys("gpt2", tokens, types) | {
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        "tokenizer.ggml.bos_token_id": ids["<|begin|>"],
        "tokenizer.ggml.eos_token_id": ids["<|end|>"],
    }

    def encode(text: str, parse_special: bool) -> list[int]:
        whole.encode_special_tokens = not parse_special
        return whole.encode(text, add_special_tokens=False).ids

    return Original(Metadata(keys), encode, whole.decode, [*SPECIALS, *USER_DEFINED_TOKENS])


@functools.cache
def sentence_piece(*, prefix: bool, byte_fallback: bool = True) -> Original:
    """Return a SentencePiece BPE; as Gemma's, one without prefix has user-defined tokens."""
    user_defined = [] if prefix else ["<tool>", "<tool_call>", "▁▁", "▁▁▁▁", "\n\n", "é!", "▁<b>"]
    stream = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for line in corpus() if line.strip()),
        model_writer=stream,
        model_type="bpe",
        vocab_size=1500,
        byte_fallback=byte_fallback,
        add_dummy_prefix=prefix,
        character_coverage=0.999,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_by_whitespace=True,
        user_defined_symbols=user_defined,
        control_symbols=["<start_of_turn>", "<end_of_turn>"],
        unk_id=0,
        bos_id=1,
        eos_id=2,
        minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=stream.getvalue())
    size = model.vocab_size()
    pieces = [model.id_to_piece(token) for token in range(size)]

    def kind(token: int) -> int:
        if model.is_unknown(token):
            return UNKNOWN
        if model.is_control(token):
            return CONTROL
        if model.is_byte(token):
            return BYTE
        return USER_DEFINED if pieces[token] in user_defined else NORMAL

    keys = _keys("llama", pieces, [kind(token) for token in range(size)]) | {
        "tokenizer.ggml.scores": np.array([model.get_score(t) for t in range(size)], np.float32),
        "tokenizer.ggml.add_space_prefix": prefix,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return Original(Metadata(keys), lambda text, _: model.encode(text), model.decode, user_defined)


@functools.cache
def character_level() -> Original:
    """Return a BPE of characters with byte fallback, as Gemma 4's: line breaks stand alone."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    control = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=3000, special_tokens=[*control, *bytes_], limit_alphabet=90, show_progress=False
    )
    text = re.findall(r"\n+|[^a-z\n]*[a-z]*[^a-z\n]{0,5}", "\n".join(corpus()))
    tokenizer.train_from_iterator(text, trainer)
    tree = json.loads(tokenizer.to_str())
    tree["added_tokens"] = [each for each in tree["added_tokens"] if each["content"] in control]
    tokenizer = Tokenizer.from_str(json.dumps(tree))
    ids = tokenizer.get_vocab()
    tokens = sorted(ids, key=lambda token: ids[token])
    kinds = dict.fromkeys(control, CONTROL) | dict.fromkeys(bytes_, BYTE) | {"<unk>": UNKNOWN}
    keys = _keys("gemma4", tokens, [kinds.get(token, NORMAL) for token in tokens]) | {
        "tokenizer.ggml.merges": [" ".join(merge) for merge in tree["model"]["merges"]],
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
    }

    def encode(text: str, parse_special: bool) -> list[int]:
        tokenizer.encode_special_tokens = not parse_special
        return tokenizer.encode(text, add_special_tokens=False).ids

    return Original(Metadata(keys), encode, tokenizer.decode, control)


@functools.cache
def word_piece(*, lowercase: bool) -> Original:
    """Return BERT's WordPiece, its vocabulary spelled as GGUF has it."""
    tokenizer = BertWordPieceTokenizer(lowercase=lowercase)
    tokenizer.train_from_iterator(corpus(), vocab_size=1500, show_progress=False)
    ids = tokenizer.get_vocab()
    tokens = sorted(ids, key=lambda token: ids[token])
    bracketed = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

    def spelled(token: str) -> str:
        if token.startswith("[") and token.endswith("]"):
            return token
        return token[2:] if token.startswith("##") else f"▁{token}"

    types = [CONTROL if token in bracketed else NORMAL for token in tokens]
    keys = _keys("bert", [spelled(token) for token in tokens], types) | {
        "tokenizer.ggml.cls_token_id": ids["[CLS]"],
        "tokenizer.ggml.seperator_token_id": ids["[SEP]"],
        "tokenizer.ggml.unknown_token_id": ids["[UNK]"],
    }
    plain = Tokenizer.from_str(tokenizer.to_str())

    def encode(text: str, parse_special: bool) -> list[int]:
        plain.encode_special_tokens = not parse_special
        return plain.encode(text, add_special_tokens=False).ids

    return Original(Metadata(keys), encode, tokenizer.decode, bracketed)
