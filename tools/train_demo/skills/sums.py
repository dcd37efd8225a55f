"""Adding two numbers."""

from __future__ import annotations

import random

from tools.train_demo.turns import Pick, Turn, is_held_out

_SUMS = (
    "What is {a} + {b}?", "What is {a} plus {b}?", "{a} + {b} = ?", "{a}+{b}", "Add {a} and {b}.",
    "Calculate {a} + {b}.", "How much is {a} + {b}?", "What is the sum of {a} and {b}?",
    "{a} plus {b}?", "Please add {a} and {b}.", "Compute {a} + {b}.", "What's {a}+{b}?",
)  # fmt: skip
_MORE_SUMS = (*_SUMS, "And {a} + {b}?", "And {a} plus {b}?", "Now {a} + {b}.")


def sum_turn(rng: random.Random, pick: Pick, *, follows: bool = False) -> Turn:
    while True:
        low = 10 if rng.random() < 0.95 or pick is is_held_out else 0
        a, b = rng.randrange(low, 100), rng.randrange(low, 100)
        if pick(f"add:{a}+{b}"):
            break
    form = rng.choice(_MORE_SUMS if follows else _SUMS)
    kind = "carry" if a % 10 + b % 10 > 9 else "no carry"
    return Turn(form.format(a=a, b=b), str(a + b), kind)


def sum_turns(rng: random.Random, pick: Pick, count: int) -> list[Turn]:
    return [sum_turn(rng, pick, follows=i > 0) for i in range(count)]
