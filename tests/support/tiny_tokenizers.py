"""Small tokenisers in each family's style, trained on the sources of the standard library.

In all of them 1 begins and 2 ends a text, and 5 ends a turn.
"""

from __future__ import annotations

import argparse
import ast
import collections
import functools
import inspect
import io
import json
import re
import textwrap
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SIZE = 480

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "llama3": _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _REST,
    "qwen2": _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _REST,
    "qwen35": _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    + r"|\s*[\r\n]+|\s+(?!\S)|\s+",
}
_BYTE_LEVEL_SPECIALS = {
    "llama3": ["<|pad|>", "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>"],
    "qwen2": ["<|pad|>", "<|begin_of_text|>", "<|endoftext|>", "<|im_start|>"],
    "qwen35": ["<|pad|>", "<|begin_of_text|>", "<|endoftext|>", "<|im_start|>"],
}
# Where images and sounds lie: the ids follow those of the other special tokens, in this order.
IMAGE_TOKENS = {
    "llama3": ["<image>", "[IMG]", "[IMG_BREAK]", "[IMG_END]", "<|image|>"],
    "llama4": ["<|image_start|>", "<|patch|>", "<|tile_x_separator|>", "<|tile_y_separator|>",
               "<|image|>", "<|image_end|>"],
    "qwen2": ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>"],
    "paddleocr": ["<|IMAGE_START|>", "<|IMAGE_PLACEHOLDER|>", "<|IMAGE_END|>"],
    "glm4": ["<|begin_of_image|>", "<|image|>", "<|end_of_image|>"],
    "minicpmv": ["<image>", "<|image_pad|>", "</image>", "<slice>", "</slice>"],
    "nemotron": ["<img>", "<image>", "</img>"],
    "deepseek_ocr": ["<|grounding|>", "<image>"],
    "internvl": ["<img>", "<IMG_CONTEXT>", "</img>"],
    "qwen2_audio": ["<|audio_start|>", "<|audio_pad|>", "<|audio_end|>", "<asr_text>"],
    "qwen25_omni": ["<|vision_bos|>", "<|IMAGE|>", "<|vision_eos|>",
                    "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"],
    "qwen3_omni": ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>",
                   "<|audio_start|>", "<|audio_pad|>", "<|audio_end|>"],
    "voxtral": ["[BEGIN_AUDIO]", "[AUDIO]", "[INST]", "[/INST]", "[TRANSCRIBE]"],
    "smolvlm": ["<fake_token_around_image>", "<image>", "<global-img>",
                *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))],
}  # fmt: skip
IMAGE_TOKENS["lfm2"] = [
    "<|image_start|>", "<image>", "<|image_end|>", "<|img_thumbnail|>",
    *(f"<|img_row_{row}_col_{column}|>" for row in range(1, 11) for column in range(1, 11)),
]  # fmt: skip
_VISIBLE = ("<asr_text>",)  # part of the text that a model writes
_GEMMA_SPECIALS = ["<pad>", "<bos>", "<eos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
_GEMMA_SPECIALS += ["<start_of_image>", "<end_of_image>", "<image_soft_token>"]
_GEMMA4_MARKS = ["<|image>", "<image|>", "<|image|>"]
_GEMMA4_SOUND_MARKS = ["<|audio>", "<audio|>", "<|audio|>"]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@functools.cache
def _corpus() -> list[str]:
    modules = (argparse, ast, inspect, textwrap, typing)
    return [inspect.getsource(module) for module in modules] + ["Zażółć gęślą jaźń 你好 🙂\n"] * 5


def write_byte_level(folder: Path, style: str, images: str | None = None) -> None:
    """Write a byte-level BPE in the style of Llama 3 or Qwen 2, with or without image tokens."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=style == "llama3"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERNS[style]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    end_of_turn = "<|im_end|>" if style.startswith("qwen") else "<|eot_id|>"
    names = [*_BYTE_LEVEL_SPECIALS[style], "<|reserved|>", end_of_turn]
    names += IMAGE_TOKENS[images] if images else []
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    _train(tokenizer, names, _corpus(), initial_alphabet=alphabet)
    settings: dict[str, Any] = {"eos_token": end_of_turn, "pad_token": names[0]}
    if style == "llama3":
        settings["bos_token"] = names[1]
        tokenizer.post_processor = _begin_with(names[1])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_settings(folder, settings)


def write_byte_level_of_encoders(folder: Path, *, is_roberta: bool = False) -> None:
    """Write a byte-level BPE with tokens around texts and pairs, as ModernBERT or RoBERTa has it.

    RoBERTa's does not bring texts to NFC, and puts two tokens between those of a pair.
    """
    names = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    tokenizer = Tokenizer(models.BPE())
    if not is_roberta:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    _train(tokenizer, names, _corpus(), initial_alphabet=alphabet)
    between = "[SEP] [SEP]" if is_roberta else "[SEP]"
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A {between} $B [SEP]",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    roles = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
    _write_settings(folder, {f"{role}_token": name for role, name in roles.items()})


def write_gemma(
    folder: Path, *, has_new_marks: bool = False, hears: bool = False, embeds: bool = False
) -> None:
    """Write a BPE over characters with byte fallback, as Gemma's tokenizer.json has it.

    Gemma 4 has other marks of images than Gemma 3, and EmbeddingGemma 2 ends texts with a token.
    """
    specials = [*_GEMMA_SPECIALS[:6], *_GEMMA4_MARKS] if has_new_marks else _GEMMA_SPECIALS
    specials = specials + _GEMMA4_SOUND_MARKS * hears
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    byte_tokens = [f"<0x{value:02X}>" for value in range(256)]
    # Nothing splits the text before merging, so the trainer gets it word by word.
    words = [word for text in _corpus() for word in re.findall(r"\s?\S+", text)]
    _train(tokenizer, specials + byte_tokens, words, limit_alphabet=100)
    tokenizer.post_processor = _begin_with("<bos>")
    if embeds:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<bos> $A <eos>",
            pair="<bos> $A <eos> <bos> $B <eos>",
            special_tokens=[("<bos>", 1), ("<eos>", 2)],
        )
    tree = json.loads(tokenizer.to_str())
    tree["added_tokens"] = [t for t in tree["added_tokens"] if t["content"] in specials]
    (folder / "tokenizer.json").write_text(json.dumps(tree))
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    _write_settings(folder, names | {"unk_token": "<unk>", "add_bos_token": True})


def write_sentencepiece(folder: Path) -> None:
    """Write a SentencePiece BPE, as Llama 2 and the first Mistral models have it."""
    model = io.BytesIO()
    lines = [line for text in _corpus() for line in text.split("\n") if line.strip()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=SIZE,
        byte_fallback=True,
        character_coverage=0.995,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["[INST]"],
        unk_id=0,
        bos_id=1,
        eos_id=2,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    _write_settings(folder, names | {"add_bos_token": True, "add_eos_token": False})


def _train(tokenizer: Tokenizer, specials: list[str], texts: Sequence[str], **options: Any) -> None:
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=[
            AddedToken(name, special=name not in _VISIBLE, normalized=False) for name in specials
        ],
        show_progress=False,
        **options,
    )
    tokenizer.train_from_iterator(texts, trainer)


def _begin_with(token: str) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, 1)]
    )


def _write_settings(folder: Path, settings: dict[str, Any]) -> None:
    tree = settings | {"chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(tree))


def write_unigram(folder: Path) -> None:
    """Write a unigram model in the style of XLM-RoBERTa, with its table of normalization."""
    model = io.BytesIO()
    lines = [line for text in _corpus() for line in text.split("\n") if line.strip()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="unigram",
        vocab_size=SIZE - 4,
        character_coverage=0.995,
        minloglevel=2,
    )
    (folder / "sentencepiece.bpe.model").write_bytes(model.getvalue())
    trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [(name, 0.0) for name in names] + [
        (trained.id_to_piece(id_), trained.get_score(id_)) for id_ in range(3, len(trained))
    ]
    tokenizer = Tokenizer(models.Unigram([*pieces, ("<mask>", 0.0)], unk_id=3))
    tokenizer.normalizer = normalizers.Precompiled(_charsmap(model.getvalue()))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always"),
        ]
    )
    tokenizer.add_special_tokens([*names, "<mask>"])
    ends = [(name, names.index(name)) for name in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=ends
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    roles = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>"}
    roles |= {"cls": "<s>", "mask": "<mask>"}
    _write_settings(folder, {f"{role}_token": name for role, name in roles.items()})


def _charsmap(model: bytes) -> bytes:
    """Return the table of normalization in a SentencePiece model: field 2 of its field 3."""
    return dict(_fields(dict(_fields(model))[3]))[2]


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the fields of a protobuf message that have a length."""
    data = io.BytesIO(message)
    while data.tell() < len(message):
        field, kind = divmod(_varint(data), 8)
        match kind:
            case 0:
                _varint(data)
            case 1 | 5:
                data.read(8 if kind == 1 else 4)
            case _:
                yield field, data.read(_varint(data))


def _varint(data: io.BytesIO) -> int:
    value = shift = 0
    while True:
        [byte] = data.read(1)
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value


def write_wordpiece(folder: Path, *, has_pairs: bool = False) -> None:
    """Write a WordPiece in the style of BERT: letters, and the commonest words of a text."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    text = " ".join(_corpus()).lower()
    letters = sorted(set("abcdefghijklmnopqrstuvwxyz0123456789.,:;()_=-'"))
    counts = collections.Counter(re.findall(r"[a-z]+", text))
    words = sorted(counts, key=lambda word: (-counts[word], word))
    pieces = [*names, *letters, *(f"##{letter}" for letter in letters), *words]
    vocabulary = list(dict.fromkeys(pieces))[:SIZE]
    tokenizer = Tokenizer(
        models.WordPiece({piece: id_ for id_, piece in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(names)
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1" if has_pairs else None,
        special_tokens=ends,
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    roles = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
    _write_settings(folder, {f"{role}_token": name for role, name in roles.items()})
