"""The tokenizer: a byte-level BPE in Qwen's manner, and the chat template."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.train_digits import turns

SIZE = 416
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_pad|>",
            "<|audio_end|>")  # fmt: skip
END, TURN, TURN_END, SOUND, SOUND_PAD, SOUND_END = range(len(SPECIALS))
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train() -> Tokenizer:
    """Train the tokenizer on what is said to the model, and on its answers."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN2), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=[AddedToken(name, special=True, normalized=False) for name in SPECIALS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = [*turns.ASKED, *turns.ADDED, *turns.GREETINGS, turns.NO_SOUND, "user\nassistant\n"]
    tokenizer.train_from_iterator(texts * 2, trainer)
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the tokenizer's files of a checkpoint."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "chat_template": TEMPLATE,
        "eos_token": SPECIALS[TURN_END],
        "pad_token": SPECIALS[END],
        "tokenizer_class": "Qwen2TokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
