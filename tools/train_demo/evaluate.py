"""Measures a checkpoint on held-out examples: ``python -m tools.train_demo.evaluate --model DIR``.

The answers are written greedily by Hugging Face's own class, a batch at a time.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import Gemma3ForConditionalGeneration

from tools.train_demo import batches, data, tokenizer, turns

_LONGEST_ANSWER = 64


@torch.no_grad()
def answers(model: Any, tok: Tokenizer, examples: list[turns.Example]) -> list[str]:
    """What the model says to each example, padded on the left and written greedily."""
    prompts = [
        tok.encode(tokenizer.render(e.messages, e.tools), add_special_tokens=False).ids
        for e in examples
    ]
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    shown = [picture for e in examples for picture in batches.images(e.messages)]
    inputs = {"input_ids": ids, "attention_mask": ids.ne(0).long()}
    if shown:
        inputs["pixel_values"] = batches.pixels(shown)
        inputs["token_type_ids"] = ids.eq(tokenizer.token(tok, "<image_soft_token>")).long()
    written = model.generate(**inputs, max_new_tokens=_LONGEST_ANSWER, do_sample=False)
    stops = {0, 1, tok.token_to_id("<end_of_turn>")}
    texts = []
    for line in written[:, width:].tolist():
        end = next((i for i, token in enumerate(line) if token in stops), len(line))
        texts.append(tok.decode(line[:end], skip_special_tokens=True))
    return texts


def measure(
    model: Any, tok: Tokenizer, skill: str, count: int, seed: int
) -> tuple[dict[str, list[int]], list[tuple[str, str]]]:
    """Hits and tries for each kind of question, and the wrong answers (right, written)."""
    examples = data.held_out(skill, count, seed)
    examples.sort(key=lambda e: len(str(e.messages)) + len(str(e.tools)))
    kinds: dict[str, list[int]] = {}
    wrong = []
    for i in range(0, count, 32):
        some = examples[i : i + 32]
        for example, text in zip(some, answers(model, tok, some), strict=True):
            hits = kinds.setdefault(example.kind, [0, 0])
            right = example.check(text)
            hits[0] += right
            hits[1] += 1
            if not right:
                wrong.append((example.answer, text))
    return kinds, wrong


def main() -> None:
    """Parse the command line, measure, and put the result into training.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="the checkpoint folder")
    parser.add_argument("--count", type=int, default=300, help="examples of each skill")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    folder = Path(args.model)
    model = Gemma3ForConditionalGeneration.from_pretrained(folder).eval()
    tok = Tokenizer.from_file(str(folder / "tokenizer.json"))
    report: dict[str, Any] = {}
    for skill in data.SKILLS:
        kinds, wrong = measure(model, tok, skill, args.count, args.seed)
        hits = sum(h for h, _ in kinds.values())
        report[skill] = {
            "accuracy": round(hits / args.count, 4),
            "kinds": {k: f"{h}/{n}" for k, (h, n) in sorted(kinds.items())},
            "confused": Counter(f"{right!r} -> {text!r}" for right, text in wrong).most_common(12),
        }
        print(skill, json.dumps(report[skill], indent=1), flush=True)
    notes = folder / "training.json"
    told = json.loads(notes.read_text()) if notes.exists() else {}
    told["held_out"] = {"seed": args.seed, "count": args.count, "skills": report}
    told["accuracy"] = {skill: report[skill]["accuracy"] for skill in report}
    notes.write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
