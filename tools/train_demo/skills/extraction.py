"""Turning a sentence into JSON."""

from __future__ import annotations

import json
import random
import re
from typing import Any

from tools.train_demo import words
from tools.train_demo.turns import Pick, Turn

_PEOPLE: dict[str, tuple[str, ...]] = {
    "name age city": (
        "{name}, who is {age}, lives in {city}.", "{name} is {age} years old and lives in {city}.",
        "{name} ({age}) is from {city}.", "In {city} lives {name}, aged {age}.",
        "My friend {name} from {city} is {age}.", "{name} moved to {city} at the age of {age}.",
        "At {age}, {name} lives in {city}.", "I met {name}, {age}, in {city}.",
        "{name} turned {age} yesterday in {city}.", "The {age}-year-old {name} comes from {city}.",
    ),
    "name city": ("{name} lives in {city}.", "{name} is from {city}.",
                  "{city} is the home of {name}.", "Yesterday {name} flew to {city}."),
    "name age": ("{name} is {age}.", "{name} is {age} years old.",
                 "My neighbour {name} is {age} years old."),
    "name job": ("{name} is a {job}.", "{name} works as a {job}.", "Our {job} is called {name}."),
    "name job city": (
        "{name} works as a {job} in {city}.", "{name} is a {job} from {city}.",
        "The {job} {name} lives in {city}.", "In {city}, {name} works as a {job}.",
    ),
    "name age job": ("{name}, {age}, is a {job}.", "{name} is {age} and works as a {job}.",
                     "The {job} {name} is {age} years old."),
    "name age job city": (
        "{name}, {age}, works as a {job} in {city}.",
        "The {job} {name} is {age} and lives in {city}.",
        "{name} is a {age}-year-old {job} from {city}.",
        "{name} lives in {city}, is {age} and works as a {job}.",
    ),
}  # fmt: skip
_ASK_JSON = (
    "Extract {keys} as JSON: {text}", "Give {keys} as JSON: {text}",
    "{text} Extract {keys} as JSON.", "Extract {keys} as JSON.\n{text}",
    "Return JSON with {keys}: {text}",
    "Write {keys} as JSON: {text}", "{text}\nReturn {keys} as JSON.",
)  # fmt: skip


def _listed(keys: list[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{', '.join(keys[:-1])} and {keys[-1]}"


def _articled(text: str) -> str:
    return re.sub(r"\ba (?=[aeiou])", "an ", text)


def extraction_turn(rng: random.Random, pick: Pick) -> Turn:
    while True:
        facts: dict[str, Any] = {
            "name": words.name(rng), "age": rng.randrange(5, 100),
            "city": words.city(rng), "job": rng.choice(words.JOBS),
        }  # fmt: skip
        there = rng.choice(list(_PEOPLE) + ["name age city"] * 4)
        if pick("json:" + "|".join(str(facts[key]) for key in there.split())):
            break
    keys = there.split()
    if rng.random() < 0.5:
        rng.shuffle(keys)
    if len(keys) > 2 and rng.random() < 0.25:
        keys.pop()
    text = _articled(rng.choice(_PEOPLE[there]).format(**facts))
    ask = rng.choice(_ASK_JSON).format(keys=_listed(keys), text=text)
    answer = json.dumps({key: facts[key] for key in keys}, ensure_ascii=False)
    return Turn(ask, answer, f"{len(keys)} keys")
