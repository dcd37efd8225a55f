"""The built-in model with its draft model and without, in turns: `python -m benchmarks.demo_draft`.

Held-out questions of each skill with text are answered one after the other. An engine without the
draft model and one with it are loaded in turns, so that other work on the machine concerns both.
The times are of the tokens after the first one of each answer, by the engine's own clock. Each
answer is forgotten, else the same question would be answered by what is known of it. Other sources
of drafts (n-grams) are on for both; `--spec-type none` turns them off for the engine without the
draft model.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from tampu.engine.engine import Engine
from tools.train_demo.data import TEXT_SKILLS, held_out
from tools.train_demo.turns import Example

_FIRST = 3  # answers of each skill that are not counted: times of steps are not known yet


@dataclass(frozen=True)
class Result:
    """What the answers to some questions took.

    Attributes:
        tokens: of each answer.
        later: the number of all but the first ones, the ends of answers included.
        seconds: their time.
        drafted: how many drafts there were.
        accepted: how many of them were right.
    """

    tokens: list[tuple[int, ...]]
    later: int
    seconds: float
    drafted: int
    accepted: int


def answer(engine: Engine, examples: list[Example]) -> Result:
    """Answer questions greedily, and forget each."""
    usages, tokens = [], []
    for each in examples:
        tools = each.tools or None
        found = engine.chat(each.messages, tools=tools, temperature=0.0, max_tokens=120)
        engine.runner.call(engine.model.scheduler.kv_manager.reset)
        usages.append(found.usage)
        tokens.append(tuple(found.tokens))
    counted = usages[_FIRST:]
    return Result(
        tokens[_FIRST:],
        sum(each.generated_tokens - 1 for each in counted),
        sum(each.generated_ns for each in counted) / 1e9,
        sum(each.drafted_tokens for each in counted),
        sum(each.accepted_tokens for each in counted),
    )


def answer_all(options: Mapping[str, Any], given: argparse.Namespace) -> dict[str, Result]:
    """Return the results of each skill, by an engine with these options."""
    with Engine.load("demo", slots=1, threads=given.threads, **options) as engine:
        return {
            skill: answer(engine, held_out(skill, given.count + _FIRST, given.seed))
            for skill in TEXT_SKILLS
        }


def show(name: str, pairs: list[tuple[Result, Result]]) -> None:
    """Print a line of results without and with the draft model."""
    later = pairs[0][0].later
    rates = [later / median(pair[place].seconds for pair in pairs) for place in (0, 1)]
    factor = median(one.seconds / two.seconds for one, two in pairs)
    other, last = pairs[-1]
    is_same = all(one.tokens == two.tokens for one, two in pairs)
    right = last.accepted / max(last.drafted, 1)
    print(
        f"{name:<8}{later:>7}{rates[0]:>10.0f}{rates[1]:>10.0f}{factor:>8.2f}"
        f"{other.drafted:>9}{last.drafted:>9}{right:>9.1%}"
        f"  {'the same' if is_same else 'DIFFERENT'}",
        flush=True,
    )


def joined(results: Mapping[str, Result]) -> Result:
    """Return the results of all skills together."""
    every = results.values()
    return Result(
        [tokens for each in every for tokens in each.tokens],
        sum(each.later for each in every),
        sum(each.seconds for each in every),
        sum(each.drafted for each in every),
        sum(each.accepted for each in every),
    )


def main() -> None:
    """Print a line for each skill, and one for all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--draft", default="demo-draft", help="name or file of the draft model")
    parser.add_argument("--count", type=int, default=100, help="questions of each skill")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--spec-type", default="auto", help="of the engine without the draft model")
    given = parser.parse_args()
    pairs = [
        (
            answer_all({"spec_type": given.spec_type}, given),
            answer_all({"draft": given.draft}, given),
        )
        for _ in range(given.repeats)
    ]
    print(f"{'':<8}{'tokens':>7}{'without':>10}{'with':>10}{'factor':>8}", end="")
    print(f"{'drafts':>9}{'with':>9}{'right':>9}  answers")
    for skill in TEXT_SKILLS:
        show(skill, [(one[skill], two[skill]) for one, two in pairs])
    show("all", [(joined(one), joined(two)) for one, two in pairs])


if __name__ == "__main__":
    main()
