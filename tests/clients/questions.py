"""What the built-in model is asked, and what it answers: the same for every client."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image, ImageDraw

SUM: list[Any] = [{"role": "user", "content": "What is 27 + 58?"}]
PERSON: list[Any] = [
    {"role": "user", "content": "Extract name and job as JSON: Our driver is called Kevin."}
]
WARM: list[Any] = [{"role": "user", "content": "Is it warm in Cairo?"}]
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Get the weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


def picture() -> bytes:
    """Return a PNG file of a red circle in the middle of white."""
    image = Image.new("RGB", (64, 64), "white")
    ImageDraw.Draw(image).ellipse((18, 18, 46, 46), fill=(220, 30, 30))
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()
