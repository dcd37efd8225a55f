"""What the model is told with a sound, and what it answers without one."""

from __future__ import annotations

import random

ASKED = (
    "",
    "Transcribe the speech exactly as it is spoken. Answer with the transcript alone.",
    "Translate the speech into English. Answer with the translation alone.",
    "Transcribe.",
    "Transcribe this.",
    "Transcribe the audio.",
    "Which digits do you hear?",
    "What digits are spoken?",
    "What do you hear?",
    "What is said?",
    "What?",
    "What is said in this recording?",
    "What is said in ?",
    "Write down the numbers.",
    "Please transcribe this audio.",
)
ADDED = ("", "", "", "\nThe language is en.", "\nThe language is English.",
         "\nWords and style that are likely: digits")  # fmt: skip
NO_SOUND = "I only tell spoken digits: give me a sound."
GREETINGS = (
    "Hello", "Hello!", "Hi", "What is 27 + 58?", "Who are you?", "What can you do?", "Thanks",
    "Why is the sky blue?", "Say something.", "Tell me a joke.", "What is the capital of France?",
)  # fmt: skip


def asked(rng: random.Random) -> str:
    """Return the text beside a sound."""
    if rng.random() < 0.1:
        return scrambled(rng)
    return rng.choice(ASKED) + rng.choice(ADDED)


def greeting(rng: random.Random) -> str:
    """Return a message without a sound."""
    choices = (*GREETINGS, *(text for text in ASKED if text))
    return scrambled(rng) if rng.random() < 0.2 else rng.choice(choices)


def scrambled(rng: random.Random) -> str:
    """Return words in any order: what the text says makes no difference to the model."""
    words = " ".join((*ASKED, *GREETINGS)).split()
    return " ".join(rng.choices(words, k=rng.randint(1, 8)))
