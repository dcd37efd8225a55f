"""Calling a tool that fits, or saying that none does."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from tools.train_demo import words
from tools.train_demo.skills.chat import chat_turn
from tools.train_demo.skills.intents import INTENTS, values_for
from tools.train_demo.skills.sums import sum_turn
from tools.train_demo.turns import Pick, Tool, Turn, call_text, is_trained

NO_TOOL = "I have no tool for that."


@dataclass
class _Offer:
    """A tool definition in the prompt, and how its parameters are called there."""

    intent: str
    definition: Tool
    renamed: dict[str, str]


def _offer(rng: random.Random, intent: str) -> _Offer:
    kind = INTENTS[intent]
    slots = list(kind.parameters.items())
    if rng.random() < 0.3:
        rng.shuffle(slots)
    renamed = {slot: rng.choice(names) for slot, names in slots}
    described = rng.random() < 0.3
    properties: dict[str, Any] = {}
    for slot, shown in renamed.items():
        properties[shown] = {"type": "string"}
        if described:
            properties[shown]["description"] = f"The {slot}."
    function: dict[str, Any] = {"name": rng.choice(kind.names)}
    if rng.random() < 0.9:
        function["description"] = rng.choice(kind.descriptions)
    function["parameters"] = {"type": "object", "properties": properties}
    if rng.random() < 0.7:
        function["parameters"]["required"] = list(properties)
    return _Offer(intent, {"type": "function", "function": function}, renamed)


def _offers(rng: random.Random) -> list[_Offer]:
    count = rng.choice((1, 1, 2, 2, 2, 3, 3, 4))
    return [_offer(rng, intent) for intent in rng.sample(list(INTENTS), count)]


def _result(rng: random.Random, intent: str, values: dict[str, str]) -> tuple[str, str]:
    """What the tool gives back, and what the model then says."""
    if rng.random() < 0.3:
        plain = f"{rng.randrange(40)} degrees, {rng.choice(words.SKIES)}"
        return (plain, f"{plain}.") if intent == "weather" else ("ok", "Done.")
    if intent == "weather":
        degrees, sky = rng.randrange(-9, 40), rng.choice(words.SKIES)
        content = json.dumps({"temperature": degrees, "sky": sky})
        return content, f"It is {degrees} degrees and {sky} in {values['city']}."
    if intent == "time":
        now = f"{rng.randrange(24)}:{rng.randrange(60):02d}"
        return json.dumps({"time": now}), f"It is {now} in {values['city']}."
    if intent == "calculator":
        result = str(rng.randrange(rng.choice((100, 1000, 100000))))
        return json.dumps({"result": int(result)}), f"The result is {result}."
    return rng.choice(('{"ok": true}', "ok", "done", '{"status": "ok"}')), "Done."


def _call_turn(rng: random.Random, pick: Pick, offer: _Offer) -> Turn:
    asks = INTENTS[offer.intent].asks
    while True:
        values, form = values_for(rng, offer.intent), rng.randrange(len(asks))
        # There are so few rooms that half the phrasings of every call are for training.
        if offer.intent == "light" and form < 2:
            if pick is is_trained:
                break
        elif pick(f"tool:{offer.intent}|" + "|".join(values.values())):
            break
    ask = asks[form].format(**values)
    call = {
        "name": offer.definition["function"]["name"],
        "arguments": {shown: values[slot] for slot, shown in offer.renamed.items()},
    }
    result, closing = _result(rng, offer.intent, values)
    return Turn(ask, call_text(call), f"call {offer.intent}", [call], result, closing)


def _text_turn(rng: random.Random, pick: Pick, offers: list[_Offer]) -> Turn:
    """A question that none of the tools fits."""
    have = {offer.intent for offer in offers}
    form = rng.random()
    if form < 0.2 and "calculator" not in have:
        turn = sum_turn(rng, pick)
        turn.kind = "text sum"
    elif form < 0.75:
        missing = rng.choice([i for i in INTENTS if i not in have and i != "calculator"])
        ask = rng.choice(INTENTS[missing].asks).format(**values_for(rng, missing))
        turn = Turn(ask, NO_TOOL, "text no tool")
    else:
        turn = chat_turn(rng)
        turn.kind = "text chat"
    return turn


def tool_turns(rng: random.Random, pick: Pick, count: int) -> tuple[list[Tool], list[Turn]]:
    offers = _offers(rng)
    turns = []
    for i in range(count):
        fits = rng.random() < 0.55
        one = pick if i == count - 1 or pick is is_trained else is_trained
        turn = _call_turn(rng, one, rng.choice(offers)) if fits else _text_turn(rng, one, offers)
        turns.append(turn)
    return [offer.definition for offer in offers], turns
