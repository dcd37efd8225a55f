"""Finding model in a long text."""

from __future__ import annotations

import random

from tools.train_demo import words
from tools.train_demo.turns import Pick, Turn, is_trained

Fact = tuple[str, str, str, str]
"""The fact's sentence, the question, the answer, the kind."""


def _code_fact(rng: random.Random) -> Fact:
    what = f"the {rng.choice(words.COLOURS)} {rng.choice(words.THINGS)}"
    value = str(rng.randrange(1000, 10000))
    ask = rng.choice(
        ("What is the code of {}?", "Which code does {} have?", "Tell me the code of {}.")
    )
    return f"The code of {what} is {value}.", ask.format(what), value, "code"


def _favourite_fact(rng: random.Random) -> Fact:
    who = words.name(rng)
    what, values = rng.choice(
        (("animal", words.ANIMALS), ("fruit", words.FRUITS), ("colour", words.COLOURS))
    )
    value = rng.choice(values)
    ask = rng.choice(("What is the favourite {} of {}?", "Which {} does {} like best?"))
    return f"The favourite {what} of {who} is {value}.", ask.format(what, who), value, "favourite"


def _place_fact(rng: random.Random) -> Fact:
    item, room = rng.choice(words.ITEMS), rng.choice(words.ROOMS)
    item = f"{rng.choice(words.COLOURS)} {item}"
    ask = rng.choice(("Where is the {}?", "In which room is the {}?"))
    return f"The {item} is in the {room}.", ask.format(item), f"in the {room}", "place"


def _home_fact(rng: random.Random) -> Fact:
    who, where = words.name(rng), words.city(rng)
    ask = rng.choice(("Where does {} live?", "In which city does {} live?"))
    return f"{who} lives in {where}.", ask.format(who), where, "home"


def _platform_fact(rng: random.Random) -> Fact:
    where, value = words.city(rng), str(rng.randrange(1, 30))
    ask = rng.choice(("Which platform does the train to {} leave from?",
                      "What is the platform of the train to {}?"))  # fmt: skip
    return f"The train to {where} leaves from platform {value}.", ask.format(where), value, "train"


_FACTS = (_code_fact, _code_fact, _favourite_fact, _place_fact, _home_fact, _platform_fact)


def _facts(rng: random.Random, pick: Pick, count: int) -> list[Fact]:
    model: dict[str, Fact] = {}
    while len(model) < count:
        fact = rng.choice(_FACTS)(rng)
        if pick(f"recall:{fact[0]}"):
            model.setdefault(fact[0].rsplit(" is ", 1)[0].rsplit(" in ", 1)[0], fact)
    return list(model.values())


def recall_turns(rng: random.Random, pick: Pick, count: int, length: int) -> list[Turn]:
    """ModelShape strewn in about ``length`` tokens of filler, then questions on them."""
    asked = _facts(rng, pick, count)
    names = {f[1] for f in asked}
    others = [f for f in _facts(rng, is_trained, rng.randrange(4)) if f[1] not in names]
    others = [f for f in others if not any(f[0][:18] == a[0][:18] for a in asked)]
    told = asked + others
    rng.shuffle(told)
    sentences = [words.filler(rng) for _ in range(max(0, length - 12 * len(told) - 15) // 10)]
    at = sorted(rng.randrange(len(sentences) + 1) for _ in told)
    for offset, (place, fact) in enumerate(zip(at, told, strict=True)):
        sentences.insert(place + offset, fact[0])
    text = " ".join(sentences)
    rng.shuffle(asked)
    if rng.random() < 0.2:
        opening = rng.choice(("Remember this: ", "Read this: ", "Note: "))
        turns = [Turn(opening + text, "Noted.", "told")]
        return turns + [Turn(f[1], _sentence(f[2]), f[3]) for f in asked]
    first, *rest = asked
    glue = rng.choice((" ", "\n", "\n\n"))
    turns = [Turn(text + glue + first[1], _sentence(first[2]), first[3])]
    return turns + [Turn(f[1], _sentence(f[2]), f[3]) for f in rest]


def _sentence(text: str) -> str:
    return text if text.isdigit() else f"{text[0].upper()}{text[1:]}."
