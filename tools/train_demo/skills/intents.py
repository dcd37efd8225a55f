"""What tools can be wanted for, under several names, and how people ask for it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tools.train_demo import words


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


def values_for(rng: random.Random, intent: str) -> dict[str, str]:
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
