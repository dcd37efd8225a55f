"""The generators: conversations for training, and held-out examples that can be checked.

Nothing here needs torch. Whether a fact (a sum, a person, a picture, a call) belongs to training
or is held out is decided by a hash of the fact alone, so no fact is ever in both.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tools.train_demo import pictures, words

Message = dict[str, Any]
Tool = dict[str, Any]
Pick = Callable[[str], bool]

SKILLS = ("vision", "add", "json", "tool", "recall", "chat")
WHO = (
    "I am tampu's built-in demo model. I can add two-digit numbers, describe simple pictures, "
    "extract JSON, call tools and recall facts."
)
NO_TOOL = "I have no tool for that."
_SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer briefly.",
    "Answer briefly.",
    "Be short and exact.",
    "You are tampu, a small model.",
    "You are a friendly assistant who answers in English.",
)


def is_held_out(key: str) -> bool:
    """Whether the fact named by the key is kept out of training (one in ten)."""
    return hashlib.blake2b(key.encode(), digest_size=8).digest()[0] % 10 == 0


def _is_trained(key: str) -> bool:
    return not is_held_out(key)


@dataclass
class Turn:
    """What the user says and what the model answers, with the kind of question."""

    user: Any
    answer: str
    kind: str
    calls: list[dict[str, Any]] | None = None
    result: str | None = None
    closing: str = ""

    def messages(self) -> list[Message]:
        """The turn as chat messages."""
        out: list[Message] = [{"role": "user", "content": self.user}]
        if self.calls is None:
            return [*out, {"role": "assistant", "content": self.answer}]
        calls = [{"type": "function", "function": call} for call in self.calls]
        out.append({"role": "assistant", "content": "", "tool_calls": calls})
        if self.result is not None:
            out.append({"role": "tool", "content": self.result})
            out.append({"role": "assistant", "content": self.closing})
        return out


@dataclass
class Example:
    """A prompt, the tools it offers, and the answer that is right."""

    skill: str
    kind: str
    messages: list[Message]
    answer: str
    tools: list[Tool] = field(default_factory=list)

    def check(self, text: str) -> bool:
        """Whether the model's text is the right answer."""
        if self.skill == "json":
            return bool(_parsed(text) == json.loads(self.answer))
        if self.skill == "tool" and self.answer.startswith("<tool_call>"):
            return bool(parse_call(text) == parse_call(self.answer))
        return _plain(text) == _plain(self.answer)


def _plain(text: str) -> str:
    return " ".join(text.split()).rstrip(".").lower()


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def parse_call(text: str) -> Any:
    """The call inside the tool-call markers, or None."""
    match = re.fullmatch(r"\s*<tool_call>\s*(\{.*\})\s*</tool_call>\s*", text, re.DOTALL)
    return _parsed(match.group(1)) if match else None


def call_text(call: dict[str, Any]) -> str:
    """A call in the form the model writes it."""
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


# ---------------------------------------------------------------- add

_SUMS = (
    "What is {a} + {b}?", "What is {a} plus {b}?", "{a} + {b} = ?", "{a}+{b}", "Add {a} and {b}.",
    "Calculate {a} + {b}.", "How much is {a} + {b}?", "What is the sum of {a} and {b}?",
    "{a} plus {b}?", "Please add {a} and {b}.", "Compute {a} + {b}.", "What's {a}+{b}?",
)  # fmt: skip
_MORE_SUMS = (*_SUMS, "And {a} + {b}?", "And {a} plus {b}?", "Now {a} + {b}.")


def _sum_turn(rng: random.Random, pick: Pick, *, follows: bool = False) -> Turn:
    while True:
        low = 10 if rng.random() < 0.95 or pick is is_held_out else 0
        a, b = rng.randrange(low, 100), rng.randrange(low, 100)
        if pick(f"add:{a}+{b}"):
            break
    form = rng.choice(_MORE_SUMS if follows else _SUMS)
    kind = "carry" if a % 10 + b % 10 > 9 else "no carry"
    return Turn(form.format(a=a, b=b), str(a + b), kind)


def _add(rng: random.Random, pick: Pick, count: int) -> list[Turn]:
    return [_sum_turn(rng, pick, follows=i > 0) for i in range(count)]


# ---------------------------------------------------------------- chat

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


def _chat_turn(rng: random.Random) -> Turn:
    asks, answer = rng.choice(_CHAT)
    return Turn(rng.choice(asks), answer, "chat")


# ---------------------------------------------------------------- json

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


def _json_turn(rng: random.Random, pick: Pick) -> Turn:
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


# ---------------------------------------------------------------- vision

_ASK_PICTURE: dict[str, tuple[str, ...]] = {
    "describe": ("What is in the picture?", "What do you see?", "Describe the picture.",
                 "Describe the image.", "What is in this image?", "What does the picture show?"),
    "colour": ("What colour is it?", "Which colour is the shape?", "What color is the shape?",
               "Which color is it?", "What colour is the object?"),
    "shape": ("What shape is it?", "Which shape is it?", "What shape is in the picture?",
              "What shape do you see?", "Which shape is in the image?"),
    "position": ("Where is it?", "Where is the shape?", "What is its position?",
                 "Where in the picture is it?", "Where is the object?"),
    "count": ("How many shapes?", "How many shapes are there?", "How many shapes do you see?",
              "How many shapes are in the picture?", "Count the shapes.",
              "How many objects are in the image?"),
}  # fmt: skip


def _one_shape(rng: random.Random, pick: Pick) -> pictures.Shape:
    while True:
        shape = pictures.Shape(
            rng.choice(list(pictures.COLOURS)), rng.choice(pictures.SHAPES), rng.randrange(9)
        )
        if pick(f"vision:{shape.colour}|{shape.shape}|{shape.position}"):
            return shape


def _many_shapes(rng: random.Random, pick: Pick) -> list[pictures.Shape]:
    while True:
        cells = sorted(rng.sample(range(9), rng.choice((1, 2, 2, 3, 3))))
        shapes = [
            pictures.Shape(rng.choice(list(pictures.COLOURS)), rng.choice(pictures.SHAPES), cell)
            for cell in cells
        ]
        dark = {"black", "blue", "purple"}
        if any(s.colour == "white" for s in shapes) and any(s.colour in dark for s in shapes):
            continue  # hardly any background would show them all
        if pick("vision:" + ",".join(f"{s.colour}|{s.shape}|{s.position}" for s in shapes)):
            return shapes


def trained_scene(rng: random.Random) -> list[pictures.Shape]:
    """The shapes of a picture that training may show."""
    if rng.random() < 0.4:
        return _many_shapes(rng, _is_trained)
    return [_one_shape(rng, _is_trained)]


def _picture_answer(kind: str, shapes: list[pictures.Shape]) -> str:
    s = shapes[0]
    if kind == "count":
        return str(len(shapes))
    if kind == "colour":
        return f"{s.colour.capitalize()}."
    if kind == "shape":
        return f"A {s.shape}."
    where = pictures.POSITIONS[s.position]
    if kind == "position":
        return f"{where.capitalize()}."
    article = "An" if s.colour == "orange" else "A"
    return f"{article} {s.colour} {s.shape} {where}."


def _vision(rng: random.Random, pick: Pick, count: int) -> list[Turn]:
    if rng.random() < 0.3:
        shapes, kinds = _many_shapes(rng, pick), ["count"]
    else:
        shapes = [_one_shape(rng, pick)]
        kinds = rng.sample(("describe", "colour", "shape", "position", "count"), min(count, 5))
        if pick is is_held_out and rng.random() < 0.5:
            kinds[-1] = "describe"
    image = pictures.draw(rng, shapes)
    turns = []
    for i, kind in enumerate(kinds):
        ask: Any = rng.choice(_ASK_PICTURE[kind])
        if i == 0:
            parts = [{"type": "image", "image": image}, {"type": "text", "text": ask}]
            ask = parts if rng.random() < 0.85 else parts[::-1]
        turns.append(Turn(ask, _picture_answer(kind, shapes), kind))
    return turns


# ---------------------------------------------------------------- recall

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
    facts: dict[str, Fact] = {}
    while len(facts) < count:
        fact = rng.choice(_FACTS)(rng)
        if pick(f"recall:{fact[0]}"):
            facts.setdefault(fact[0].rsplit(" is ", 1)[0].rsplit(" in ", 1)[0], fact)
    return list(facts.values())


def _recall(rng: random.Random, pick: Pick, count: int, length: int) -> list[Turn]:
    """Facts strewn in about ``length`` tokens of filler, then questions on them."""
    asked = _facts(rng, pick, count)
    names = {f[1] for f in asked}
    others = [f for f in _facts(rng, _is_trained, rng.randrange(4)) if f[1] not in names]
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


# ---------------------------------------------------------------- tool


@dataclass(frozen=True)
class Intent:
    """What a tool can be wanted for, under several names."""

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    parameters: dict[str, tuple[str, ...]]
    asks: tuple[str, ...]


INTENTS: dict[str, Intent] = {
    "weather": Intent(
        ("get_weather", "weather", "current_weather", "lookup_weather", "get_current_weather"),
        ("Get the weather in a city.", "Current weather of a place.", "Look up the weather.",
         "Get the current weather in a given city."),
        {"city": ("city", "location", "place", "town")},
        ("What is the weather in {city}?", "How is the weather in {city}?", "Weather in {city}?",
         "What is the weather like in {city}?", "Tell me the weather in {city}.",
         "Is it raining in {city}?", "How is the weather in {city} today?",
         "Is it warm in {city}?", "What's the weather in {city}?"),
    ),
    "time": Intent(
        ("get_time", "current_time", "local_time", "clock", "get_local_time"),
        ("Get the local time in a city.", "Current time of a place.", "Tell the time."),
        {"city": ("city", "location", "place", "town")},
        ("What time is it in {city}?", "What is the time in {city}?", "Time in {city}?",
         "Tell me the time in {city}.", "How late is it in {city}?", "What's the time in {city}?"),
    ),
    "calculator": Intent(
        ("calculator", "calculate", "compute", "evaluate"),
        ("Work out a sum.", "Evaluate an expression.", "A calculator.", "Do arithmetic."),
        {"expression": ("expression", "formula", "input")},
        ("What is {expression}?", "Calculate {expression}.", "Compute {expression}.",
         "How much is {expression}?", "Work out {expression}."),
    ),
    "reminder": Intent(
        ("set_reminder", "add_reminder", "remind_me", "create_reminder"),
        ("Set a reminder.", "Remind the user of something.", "Create a reminder."),
        {"text": ("text", "task", "message"), "time": ("time", "at", "when")},
        ("Remind me to {text} at {time}.", "At {time}, remind me to {text}.",
         "Set a reminder for {time}: {text}.", "Please remind me to {text} at {time}."),
    ),
    "translate": Intent(
        ("translate", "translate_text", "translator"),
        ("Translate a text.", "Translate a phrase into a language."),
        {"text": ("text", "phrase"), "language": ("language", "target", "to")},
        ("Translate {text} into {language}.", "How do you say {text} in {language}?",
         "Put this into {language}: {text}"),
    ),
    "search": Intent(
        ("search", "web_search", "search_web"),
        ("Search the web.", "Find pages about something."),
        {"query": ("query", "q", "topic")},
        ("Search for {query}.", "Search the web for {query}.", "Look up {query}.",
         "Find pages about {query}."),
    ),
    "email": Intent(
        ("send_email", "send_mail", "email"),
        ("Send an email.", "Write a mail to a person."),
        {"to": ("to", "recipient", "person"), "subject": ("subject", "about")},
        ("Send an email to {to} about the {subject}.", "Write to {to} about the {subject}.",
         "Email {to} about the {subject}."),
    ),
    "music": Intent(
        ("play_music", "play_song", "play"),
        ("Play music.", "Play songs by an artist."),
        {"artist": ("artist", "singer", "name")},
        ("Play something by {artist}.", "Play music by {artist}.", "I want to hear {artist}.",
         "Play a song by {artist}."),
    ),
    "light": Intent(
        ("set_light", "switch_light", "light"),
        ("Turn a light on or off.", "Switch the light in a room."),
        {"room": ("room", "place"), "state": ("state", "value")},
        ("Turn {state} the light in the {room}.", "Switch the light in the {room} {state}.",
         "Turn the light in the {room} {state}.", "Please turn {state} the {room} light."),
    ),
}  # fmt: skip


def _values(rng: random.Random, intent: str) -> dict[str, str]:
    if intent in ("weather", "time"):
        return {"city": words.city(rng)}
    if intent == "calculator":
        digits = rng.choice((10, 100, 100, 1000, 1000))
        a, b = rng.randrange(digits // 10, digits), rng.randrange(2, rng.choice((10, 100, 1000)))
        return {"expression": f"{a} {rng.choice('+-*/')} {b}"}
    if intent == "reminder":
        return {
            "text": rng.choice(words.TASKS),
            "time": f"{rng.randrange(24)}:{rng.randrange(0, 60, 5):02d}",
        }
    if intent == "translate":
        return {"text": rng.choice(words.PHRASES), "language": rng.choice(words.LANGUAGES)}
    if intent == "search":
        topic = rng.choice(words.TOPICS)
        return {"query": rng.choice((f"{topic} in {words.city(rng)}", f"{words.name(rng)}",
                                     f"{topic} {words.name(rng)}"))}  # fmt: skip
    if intent == "email":
        return {"to": words.name(rng), "subject": rng.choice(words.TOPICS)}
    if intent == "music":
        return {"artist": words.name(rng)}
    return {"room": rng.choice(words.ROOMS), "state": rng.choice(("on", "off"))}


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
        values, form = _values(rng, offer.intent), rng.randrange(len(asks))
        # There are so few rooms that half the phrasings of every call are for training.
        if offer.intent == "light" and form < 2:
            if pick is _is_trained:
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
        turn = _sum_turn(rng, pick)
        turn.kind = "text sum"
    elif form < 0.75:
        missing = rng.choice([i for i in INTENTS if i not in have and i != "calculator"])
        ask = rng.choice(INTENTS[missing].asks).format(**_values(rng, missing))
        turn = Turn(ask, NO_TOOL, "text no tool")
    else:
        turn = _chat_turn(rng)
        turn.kind = "text chat"
    return turn


def _tool(rng: random.Random, pick: Pick, count: int) -> tuple[list[Tool], list[Turn]]:
    offers = _offers(rng)
    turns = []
    for i in range(count):
        fits = rng.random() < 0.55
        one = pick if i == count - 1 or pick is _is_trained else _is_trained
        turn = _call_turn(rng, one, rng.choice(offers)) if fits else _text_turn(rng, one, offers)
        turns.append(turn)
    return [offer.definition for offer in offers], turns


# ---------------------------------------------------------------- examples


def _turns(
    rng: random.Random, pick: Pick, skill: str, count: int, length: int
) -> tuple[list[Tool], list[Turn]]:
    if skill == "tool":
        return _tool(rng, pick, count)
    if skill == "recall":
        return [], _recall(rng, pick, count, length)
    if skill == "vision":
        return [], _vision(rng, pick, count)
    if skill == "add":
        return [], _add(rng, pick, count)
    if skill == "json":
        return [], [_json_turn(rng, pick) for _ in range(count)]
    return [], [_chat_turn(rng) for _ in range(count)]


def _side_turn(rng: random.Random) -> Turn:
    """A short turn of training facts, to stand before or after others."""
    form = rng.random()
    if form < 0.35:
        return _sum_turn(rng, _is_trained)
    if form < 0.6:
        return _json_turn(rng, _is_trained)
    if form < 0.7:
        missing = rng.choice([i for i in INTENTS if i != "calculator"])
        ask = rng.choice(INTENTS[missing].asks).format(**_values(rng, missing))
        return Turn(ask, NO_TOOL, "no tool")
    return _chat_turn(rng)


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
    tools, turns = _turns(rng, _is_trained, skill, count, length)
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
        tools, (*history, last) = _tool(rng, is_held_out, 2 if follows else 1)
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
