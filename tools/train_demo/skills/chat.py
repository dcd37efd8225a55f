"""Small talk."""

from __future__ import annotations

import random

from tools.train_demo.turns import Turn

WHO = (
    "I am tampu's built-in demo model. I can add two-digit numbers, describe simple pictures, "
    "extract JSON, call tools and recall facts."
)

_CHAT: tuple[tuple[tuple[str, ...], str], ...] = (
    (("Hello", "Hi", "Hello!", "Hi!", "Hey", "Hi there!", "Good morning!", "Good evening.",
      "Hello there", "hello", "hi"), "Hello! How can I help you?"),
    (("Who are you?", "What are you?", "What can you do?", "What is your name?", "who are you",
      "Tell me about yourself.", "Are you an AI?", "How can you help me?", "Introduce yourself.",
      "help", "What model are you?"), WHO),
    (("Thanks", "Thanks!", "Thank you", "Thank you!", "Thank you very much.", "Great, thanks!",
      "Thanks a lot!", "thanks"), "You're welcome!"),
    (("How are you?", "How are you today?", "How is it going?", "Are you well?"),
     "I am fine, thank you. How can I help you?"),
    (("Bye", "Goodbye!", "See you!", "Bye!", "Good night!", "See you later."), "Goodbye!"),
    (("Why is the sky blue?", "Tell me a joke.", "Write a poem.", "Who won the war?",
      "What is love?", "Explain gravity.", "Write a program that sorts a list.",
      "What is the capital of France?", "Tell me a story.", "Who wrote this book?",
      "What is the meaning of life?", "How do planes fly?"),
     "I am too small a model to know that."),
)  # fmt: skip


def chat_turn(rng: random.Random) -> Turn:
    asks, answer = rng.choice(_CHAT)
    return Turn(rng.choice(asks), answer, "chat")
