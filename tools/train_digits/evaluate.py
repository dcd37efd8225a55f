"""Measures a file on voices and speeds that it was not trained with.

``python -m tools.train_digits.evaluate --model digits.gguf``; tampu itself hears and answers.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor

from tampu import Engine
from tools.train_digits import data
from tools.train_digits.speech import Speaker

SLOTS = 8
_INSTRUCTION = "Transcribe."


def measure(engine: Engine, said: list[data.Utterance]) -> list[tuple[data.Utterance, str]]:
    """Return the utterances whose transcript is wrong, each with what the model wrote."""
    speaker = Speaker()
    sounds = [data.spoken(speaker, each).samples for each in said]

    def heard(index: int) -> str:
        message = {"role": "user", "content": _INSTRUCTION, "audio": [sounds[index]]}
        return engine.chat([message], temperature=0.0, max_tokens=64).text

    with ThreadPoolExecutor(SLOTS) as pool:
        answers = zip(said, pool.map(heard, range(len(said))), strict=True)
        return [(each, answer) for each, answer in answers if answer != each.transcript]


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a name or a path")
    parser.add_argument("--count", type=int, default=500, help="of sounds")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    said = data.held_out(args.count, args.seed)
    with Engine.load(args.model, context=512, slots=SLOTS) as engine:
        wrong = measure(engine, said)
    for utterance, answer in wrong:
        print(f"{utterance.transcript!r} -> {answer!r}: {utterance}")
    digits = sum(len(each.digits) for each in said)
    print(f"right: {args.count - len(wrong)} of {args.count} sounds, {digits} digits in all")


if __name__ == "__main__":
    main()
