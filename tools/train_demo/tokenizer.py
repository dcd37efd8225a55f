"""The tokenizer: a small SentencePiece-like BPE in Gemma's manner, and the chat template."""

from __future__ import annotations

import json
import random
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2.sandbox
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tools.train_demo import data, turns

SPECIALS = (
    "<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>",
    "<start_of_image>", "<end_of_image>", "<image_soft_token>",
)  # fmt: skip
USER_DEFINED = ("<tool_call>", "</tool_call>")
IMAGE_TOKENS = 16
IMAGE_TEXT = "\n\n<start_of_image>" + "<image_soft_token>" * IMAGE_TOKENS + "<end_of_image>\n\n"
TEMPLATE = Path(__file__).with_name("chat_template.jinja").read_text()
# A capital never joins the space before it, so that a name is the same tokens wherever it stands.
_WORDS = r"[A-Z]+[a-z]*|▁?[a-z]+|[0-9]|\n|▁?[^A-Za-z0-9\n▁]+|▁+"


def _tojson(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@lru_cache(maxsize=1)
def _template() -> jinja2.Template:
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = _tojson
    return env.from_string(TEMPLATE)


def render(
    messages: list[turns.Message], tools: list[turns.Tool] | None = None, *, prompt: bool = True
) -> str:
    """The text of a conversation, images already expanded to their soft tokens."""
    text = _template().render(
        messages=messages, tools=tools or None, bos_token="<bos>", add_generation_prompt=prompt
    )
    return text.replace("<start_of_image>", IMAGE_TEXT)


def _corpus(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    texts = []
    for i in range(count):
        tools, messages = data.conversation(data.SKILLS[i % len(data.SKILLS)], rng, 150)
        text = render(messages, tools, prompt=False)
        for special in (IMAGE_TEXT, *SPECIALS, *USER_DEFINED):
            text = text.replace(special, "\n")
        texts.append(text)
    return texts


def train(seed: int, pieces: int = 1000, texts: int = 6000) -> Tokenizer:
    """Train the tokenizer on the generators' own text.

    The merges are listed as SentencePiece would try them (every split of every piece, best piece
    first), so that merging by rank and merging by score give the same ids.
    """
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    characters = [chr(c) for c in range(0x21, 0x7F)] + ["▁", "\n"]
    trainer = trainers.BpeTrainer(
        vocab_size=pieces + len(characters), initial_alphabet=characters, min_frequency=8,
        show_progress=False, special_tokens=[],
    )  # fmt: skip
    learner.train_from_iterator(_corpus(seed, texts), trainer)
    learnt = json.loads(learner.to_str())["model"]["vocab"]
    merged = [p for p in sorted(learnt, key=lambda p: learnt[p]) if len(p) > 1]
    return of_pieces([*SPECIALS, *USER_DEFINED, *(f"<0x{b:02X}>" for b in range(256)), *merged,
                      *characters])  # fmt: skip


def of_pieces(ordered: list[str]) -> Tokenizer:
    """Return the tokenizer with these pieces, in the order of their ids: a model file's too."""
    first = len(SPECIALS) + len(USER_DEFINED) + 256
    merged = [p for p in ordered[first:] if len(p) > 1]
    vocab = {piece: i for i, piece in enumerate(ordered)}
    merges = [
        (p[:i], p[i:])
        for p in merged
        for i in range(1, len(p))
        if p[:i] in vocab and p[i:] in vocab
    ]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.add_tokens(list(USER_DEFINED))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 2)]
    )
    return tokenizer


def token(tokenizer: Tokenizer, piece: str) -> int:
    """The id of a piece that the vocabulary surely has."""
    found: int | None = tokenizer.token_to_id(piece)
    if found is None:
        raise KeyError(piece)
    return found


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the tokenizer files of a Hugging Face checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    added = {
        str(tokenizer.token_to_id(token)): {
            "content": token, "lstrip": False, "normalized": False, "rstrip": False,
            "single_word": False, "special": token in SPECIALS,
        }
        for token in (*SPECIALS, *USER_DEFINED)
    }  # fmt: skip
    marks = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    images = {
        "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
    }  # fmt: skip
    config = {
        "add_bos_token": True, "add_eos_token": False, "added_tokens_decoder": added,
        "chat_template": TEMPLATE, "clean_up_tokenization_spaces": False,
        "extra_special_tokens": images, "model_max_length": 2048,
        "tokenizer_class": "PreTrainedTokenizerFast", **marks, **images,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "special_tokens_map.json").write_text(
        json.dumps({**marks, **images}, indent=2) + "\n"
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE)
