"""What the built-in model is asked, and what it answers: the same for every client."""

from __future__ import annotations

SUM = [{"role": "user", "content": "What is 27 + 58?"}]
PERSON = [{"role": "user", "content": "Extract name and job as JSON: Our driver is called Kevin."}]
WARM = [{"role": "user", "content": "Is it warm in Cairo?"}]
WEATHER = {
    "name": "get_weather",
    "description": "Get the weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
