"""Answers of the built-in model about held-out images, end to end: `python -m benchmarks.images`.

Pictures are drawn as for its training, of contents that it never saw, and asked about through the
engine as anybody would: PNG files in a conversation.
"""

from __future__ import annotations

import argparse
import io
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tampu.engine.engine import Engine
from tools.train_demo import data, turns

KINDS = ("colour", "shape", "position", "count", "describe")


def questions(count: int, seed: int) -> Iterator[turns.Example]:
    """Yield a number of questions of each kind, each with its own image."""
    left = Counter(dict.fromkeys(KINDS, count))
    for number in range(100):
        for example in data.held_out("vision", 100, seed + number):
            if left[example.kind] > 0 and len(example.messages) == 1:
                left[example.kind] -= 1
                yield example
        if not +left:
            return


def as_message(message: turns.Message) -> dict[str, Any]:
    """Return a chat message with its image as a PNG file."""
    images, texts = [], []
    for part in message["content"]:
        if part["type"] == "image":
            file = io.BytesIO()
            part["image"].save(file, "PNG")
            images.append(file.getvalue())
        else:
            texts.append(part["text"])
    return {"role": message["role"], "content": "\n".join(texts), "images": images}


def measure(engine: Engine, count: int, seed: int) -> tuple[Counter[str], list[tuple[str, str]]]:
    """Return the number of right answers of each kind, and the wrong answers."""
    right: Counter[str] = Counter()
    wrong = []
    for example in questions(count, seed):
        messages = [as_message(message) for message in example.messages]
        text = engine.chat(messages, max_tokens=40, temperature=0.0).text
        right[example.kind] += example.check(text)
        if not example.check(text):
            wrong.append((example.answer, text))
    return right, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="questions of each kind")
    parser.add_argument("--seed", type=int, default=11)
    arguments = parser.parse_args()
    with Engine.load("demo", context=512) as engine:
        right, wrong = measure(engine, arguments.count, arguments.seed)
    for kind in KINDS:
        print(f"| {kind} | {right[kind]}/{arguments.count} |")
    four = sum(right[kind] for kind in KINDS[:4]) / (4 * arguments.count)
    print(f"| colour, shape, position, count | {four:.1%} |")
    for (answer, text), times in Counter(wrong).most_common(12):
        print(f"  {times} x {answer!r} answered {text!r}")


if __name__ == "__main__":
    main()
