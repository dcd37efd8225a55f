"""Conversations for training, and held-out examples that can be checked.

Nothing here needs torch.
"""

from __future__ import annotations

import random

from tools.train_demo.skills.calling import NO_TOOL, tool_turns
from tools.train_demo.skills.chat import chat_turn
from tools.train_demo.skills.extraction import extraction_turn
from tools.train_demo.skills.intents import INTENTS, values_for
from tools.train_demo.skills.looking import picture_turns
from tools.train_demo.skills.recall import recall_turns
from tools.train_demo.skills.sums import sum_turn, sum_turns
from tools.train_demo.turns import Example, Message, Pick, Tool, Turn, is_held_out, is_trained

TEXT_SKILLS = ("add", "json", "tool", "recall", "chat")
SKILLS = ("vision", *TEXT_SKILLS)
_SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer briefly.",
    "Answer briefly.",
    "Be short and exact.",
    "You are tampu, a small model.",
    "You are a friendly assistant who answers in English.",
)


def _turns(
    rng: random.Random, pick: Pick, skill: str, count: int, length: int
) -> tuple[list[Tool], list[Turn]]:
    if skill == "tool":
        return tool_turns(rng, pick, count)
    if skill == "recall":
        return [], recall_turns(rng, pick, count, length)
    if skill == "vision":
        return [], picture_turns(rng, pick, count)
    if skill == "add":
        return [], sum_turns(rng, pick, count)
    if skill == "json":
        return [], [extraction_turn(rng, pick) for _ in range(count)]
    return [], [chat_turn(rng) for _ in range(count)]


def _side_turn(rng: random.Random) -> Turn:
    """A short turn of training facts, to stand before or after others."""
    form = rng.random()
    if form < 0.35:
        return sum_turn(rng, is_trained)
    if form < 0.6:
        return extraction_turn(rng, is_trained)
    if form < 0.7:
        missing = rng.choice([i for i in INTENTS if i != "calculator"])
        ask = rng.choice(INTENTS[missing].asks).format(**values_for(rng, missing))
        return Turn(ask, NO_TOOL, "no tool")
    return chat_turn(rng)


def _system(rng: random.Random) -> list[Message]:
    if rng.random() < 0.75:
        return []
    return [{"role": "system", "content": rng.choice(_SYSTEMS)}]


_TRAIN_TURNS = {"add": 6, "json": 4, "chat": 5, "tool": 5, "vision": 5, "recall": 6}


def conversation(
    skill: str, rng: random.Random, length: int = 200
) -> tuple[list[Tool], list[Message]]:
    """A whole training conversation: every assistant message in it is right.

    Args:
        skill: One of ``SKILLS``.
        rng: The source of chance.
        length: About how many tokens of text a recall example may hold.
    """
    count = rng.randint(1, _TRAIN_TURNS[skill])
    if rng.random() < 0.65:
        length = min(length, rng.randint(30, 140))  # many facts in few tokens teach more
    tools, turns = _turns(rng, is_trained, skill, count, length)
    if rng.random() < 0.2 and not tools:
        turns.insert(0, _side_turn(rng))
    if rng.random() < 0.15 and not tools:
        turns.append(_side_turn(rng))
    return tools, _system(rng) + [m for turn in turns for m in turn.messages()]


def _held_out_one(skill: str, rng: random.Random, length: int | None) -> Example:
    follows = rng.random() < 0.25
    size = length or rng.randrange(100, 650)
    history: list[Turn] = []
    if skill == "tool":
        tools, (*history, last) = tool_turns(rng, is_held_out, 2 if follows else 1)
    elif skill == "recall":
        tools, (*history, last) = _turns(rng, is_held_out, skill, 2 if follows else 1, size)
    else:
        tools, (*_, last) = _turns(rng, is_held_out, skill, 1, size)
        history = [_side_turn(rng)] if follows else []
    messages = _system(rng) + [m for turn in history for m in turn.messages()]
    return Example(skill, last.kind, [*messages, last.messages()[0]], last.answer, tools)


def held_out(skill: str, count: int, seed: int, length: int | None = None) -> list[Example]:
    """Examples on facts that training never saw.

    Args:
        skill: One of ``SKILLS``.
        count: How many.
        seed: The same seed gives the same examples.
        length: About how many tokens the text of a recall example has (else 100 to 650).
    """
    rng = random.Random(f"{skill}:{seed}")
    return [_held_out_one(skill, rng, length) for _ in range(count)]
