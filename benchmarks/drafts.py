"""Answers with drafts and without, in turns: `python -m benchmarks.drafts MODEL`.

A model with random weights writes nothing that can be guessed, and one with real weights nothing
that is the same twice. So the tokens of most scenes are given: each is sampled, and then replaced
by the next one of a script. What is computed is what a model would compute that writes this text;
drafts are accepted as they agree with the script.

    rewrite    the text of the prompt with ten small changes
    schema     the model's own answer in a JSON schema with long names
    prose      a text that is not in the prompt
    random     random tokens, of which no n-gram occurs twice

All scenes are run by one engine in one process; with drafts and without take turns (A B A B ...),
so that other work on the machine concerns both. The times are of the answers' tokens after the
first one of each. The CPU time of both is compared too: with `--threads 1` it depends little on
what else the machine does. `--spec-type` of `tampu serve` turns drafts on and off in the same way.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tampu.engine.engine import Engine
from tampu.runner.drafters import GuessKind
from tampu.runner.events import Usage
from tampu.runner.sequence import Sequence as RunningSequence
from tampu.runner.speculation import GuessingModel, Speculation
from tampu.runner.step_times import StepTimes
from tampu.sampling import Sampler
from tampu.sampling.options import SamplingOptions

PAGE = Path(__file__).parent.parent / "docs" / "runner.md"
OTHER_PAGE = Path(__file__).parent.parent / "docs" / "kernels.md"
CHANGES = 10
_NAMES = (
    "temperature_in_degrees_celsius", "probability_of_precipitation", "wind_speed_in_kilometers",
    "relative_humidity_of_the_air", "number_of_daylight_hours", "is_suitable_for_a_picnic",
)  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {
        name: {"type": "boolean"} if name.startswith("is") else {"enum": [1, 5, 10, 50]}
        for name in _NAMES
    },
    "required": list(_NAMES),
    "additionalProperties": False,
}
WEEK = {"type": "array", "items": SCHEMA, "minItems": 3, "maxItems": 3}


class Synthetic:
    """Lets a model guess, and then replaces its guesses: the n-th is right at a given rate.

    As vLLM's `synthetic_acceptance_rates`: how often the n-th draft of a step is accepted.
    """

    kind: ClassVar[GuessKind] = GuessKind.MTP
    takes_cells: ClassVar[bool] = True  # an assistant takes none, and can wait as well

    def __init__(self, model: GuessingModel, scene: Scene, rates: Sequence[float]) -> None:
        self.model = model
        self.times, self.cost = model.times, model.cost
        self.room, self.ended = model.room, model.ended
        self._rates = [1.0, *rates]
        self._source = random.Random(0)
        pairs = zip(scene.prompts, scene.scripts or (), strict=True)
        self._texts = {tuple(prompt): script for prompt, script in pairs}

    def guess(self, wanted: Mapping[RunningSequence, int]) -> dict[RunningSequence, list[int]]:
        """Return as many guesses as the model has."""
        found = self.model.guess(wanted)
        return {each: self._replaced(each, len(guess)) for each, guess in found.items()}

    def _replaced(self, sequence: RunningSequence, count: int) -> list[int]:
        prompt = tuple(sequence.tokens[: sequence.prompt_length].tolist())
        right = self._texts[prompt][sequence.generated : sequence.generated + count]
        for number in range(len(right)):
            at = min(number, len(self._rates) - 2)
            if self._source.random() >= self._rates[at + 1] / self._rates[at]:
                right[number] += 1
                break
        return right


class ScriptedSampler(Sampler):
    """Samples each token, and returns the next one of a script in its place."""

    def __init__(self, options: SamplingOptions, size: int, script: Sequence[int]) -> None:
        super().__init__(options, size)
        self._script = iter(script)

    def sample(
        self, logits: npt.NDArray[np.float32], mask: npt.NDArray[np.uint32] | None = None
    ) -> int:
        """Return the next token of the script."""
        super().sample(logits, mask)
        return next(self._script)

    def choose(
        self, tokens: npt.NDArray[np.intp], logits: npt.NDArray[np.float32], total: float
    ) -> int:
        """Return the next token of the script."""
        super().choose(tokens, logits, total)
        return next(self._script)


@dataclass(frozen=True)
class Scene:
    """What is asked: a prompt for each stream, and the tokens that each gets.

    Attributes:
        name: of the scene.
        prompts: of the streams.
        scripts: their tokens; None: the model's own, in the schema.
    """

    name: str
    prompts: list[list[int]]
    scripts: list[list[int]] | None


@dataclass(frozen=True)
class Result:
    """What one run of a scene took.

    Attributes:
        seconds: the time of all answers.
        cpu_seconds: CPU time of the process for them.
        tokens: of them.
        drafted: of these, the tokens that were drafts, right or wrong.
        accepted: the right ones.
    """

    seconds: float
    cpu_seconds: float
    tokens: int
    drafted: int
    accepted: int


def rewritten(text: list[int], source: random.Random) -> list[int]:
    """Return a text in which ten tokens are replaced, left out, or have one more before them."""
    changed = list(text)
    step = len(text) // CHANGES
    for number in range(CHANGES):
        at = number * step + source.randrange(step // 2, step - 2)
        new = source.randrange(1000, 9000)
        changed[at : at + number % 2] = [new] if number % 3 else []
    return changed


def single(engine: Engine, tokens: int) -> Iterator[Scene]:
    """Yield the scenes of a single stream, with about so many tokens."""
    source = random.Random(1)
    text = engine.tokenize(PAGE.read_text(encoding="utf-8"))[:tokens]
    yield Scene("rewrite", [text], [rewritten(text, source)])
    yield Scene("schema", [engine.tokenize("The weather of the next three days as JSON:")], None)
    prose = engine.tokenize(OTHER_PAGE.read_text(encoding="utf-8"))[: tokens // 2]
    yield Scene("prose", [text[:100]], [prose])


def unguessable(streams: int, length: int) -> Scene:
    """Return a scene of so many streams, with so many tokens each."""
    source = random.Random(streams)
    prompts, scripts = (
        [[source.randrange(1000, 14_000) for _ in range(count)] for _ in range(streams)]
        for count in (8, length)
    )
    return Scene(f"random, {streams} streams", prompts, scripts)


@contextmanager
def scripted(engine: Engine, scene: Scene) -> Iterator[None]:
    """Give each request of a scene its script."""
    submit = engine.runner.submit
    scripts = dict(zip(map(tuple, scene.prompts), scene.scripts or (), strict=False))

    def submit_scripted(sequence: RunningSequence) -> None:
        prompt = tuple(sequence.tokens[: sequence.prompt_length].tolist())
        if prompt in scripts:
            size = engine.tokenizer.vocabulary_size
            sequence.sampler = ScriptedSampler(sequence.options, size, scripts[prompt])
        submit(sequence)

    engine.runner.submit = submit_scripted  # type: ignore[method-assign]
    try:
        yield
    finally:
        engine.runner.submit = submit  # type: ignore[method-assign]


def run(engine: Engine, scene: Scene) -> Result:
    """Run a scene once."""

    def ask(number: int) -> Usage:
        options: dict[str, Any] = {"format": WEEK, "max_tokens": 600}
        if scene.scripts is not None:
            options = {"max_tokens": len(scene.scripts[number]), "ignore_eos": True}
        prompt = scene.prompts[number]
        return engine.generate(prompt, temperature=0.0, **options).usage

    with scripted(engine, scene), ThreadPoolExecutor(len(scene.prompts)) as pool:
        list(pool.map(lambda prompt: engine.generate(prompt, max_tokens=0), scene.prompts))
        began = time.process_time()
        usages = list(pool.map(ask, range(len(scene.prompts))))
        cpu_seconds = time.process_time() - began
    return Result(
        max(each.generated_ns for each in usages) / 1e9,
        cpu_seconds,
        sum(each.generated_tokens - 1 for each in usages),
        sum(each.drafted_tokens for each in usages),
        sum(each.accepted_tokens for each in usages),
    )


def compared(engine: Engine, scene: Scene, repeats: int) -> list[tuple[Result, Result]]:
    """Return results without drafts and with, in turns."""
    scheduler = engine.model.scheduler
    drafts = scheduler.drafts.source
    found = []
    for _ in range(repeats):
        pair = []
        for each in (None, drafts):
            scheduler.drafts.source = each
            pair.append(run(engine, scene))
            engine.runner.call(scheduler.kv_manager.reset)  # else the answer before is guessed
        found.append((pair[0], pair[1]))
    return found


def show(engine: Engine, scene: Scene, repeats: int) -> None:
    """Print what a scene takes."""
    pairs = compared(engine, scene, repeats)
    rates = [[each.tokens / each.seconds for each in pair] for pair in pairs]
    without, with_drafts = (median(each) for each in zip(*rates, strict=True))
    factor = median(second / first for first, second in rates)
    cpu = median(first.cpu_seconds / second.cpu_seconds for first, second in pairs)
    first_factor = rates[0][1] / rates[0][0]
    last = pairs[-1][1]
    print(
        f"{scene.name:<22}{without:>10.1f}{with_drafts:>10.1f}{factor:>8.3f}{first_factor:>8.3f}{cpu:>8.3f}"
        f"  {last.drafted} {last.accepted} of {last.tokens}",
        flush=True,
    )


def length_of(streams: int, given: argparse.Namespace) -> int:
    """Return how many tokens each of so many streams gets: as asked, or half of all together."""
    length: int = given.length or max(given.tokens // 2 // streams, 16)
    return length


def predicted(model: Path, given: argparse.Namespace, options: Mapping[str, Any]) -> None:
    """Print what multi-token prediction takes, with guesses that are right at given rates."""
    for streams in given.mtp_streams:
        scene = unguessable(streams, length := length_of(streams, given))
        with Engine.load(model, context=length + 64, slots=streams, **options) as engine:
            speculation = engine.model.scheduler.drafts.source
            if not isinstance(speculation, Speculation) or speculation.model is None:
                raise SystemExit(
                    f"{model} has no layer of multi-token prediction, and no assistant"
                )
            speculation.model = Synthetic(speculation.model, scene, given.rates)
            show(engine, replace(scene, name=f"mtp, {streams} streams"), given.repeats)
            print(costs("model", speculation.times), costs("mtp", speculation.model.times))


def costs(name: str, times: StepTimes) -> str:
    """Return the milliseconds of steps by their rows."""
    known = ", ".join(f"{each}: {1000 * times.at(each):.1f}" for each in times.rows)
    return f"{name}, ms of rows: {known}"


def main() -> None:
    """Print a line for each scene."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument("--scenes", nargs="*", default=["rewrite", "schema", "prose"])
    parser.add_argument("--mtp-streams", type=int, nargs="*", default=[], help="such as 1 8")
    parser.add_argument("--length", type=int, help="tokens of each stream's answer")
    parser.add_argument("--rates", type=float, nargs="*", default=[0.8, 0.7, 0.6])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--draft", help="the file of an assistant, for --mtp-streams")
    given = parser.parse_args()
    options: dict[str, Any] = {"threads": given.threads, "draft": given.draft}
    titles = (
        f"{'tokens a second':<22}{'none':>10}{'drafts':>10}{'factor':>8}{'first':>8}{'by CPU':>8}"
    )
    print(f"{titles}  drafted, accepted")
    if given.scenes:
        with Engine.load(given.model, context=4 * given.tokens, slots=1, **options) as engine:
            for scene in single(engine, given.tokens):
                if scene.name in given.scenes:
                    show(engine, scene, given.repeats)
    predicted(given.model, given, options)
    for streams in given.streams:
        length = length_of(streams, given)
        with Engine.load(given.model, context=length + 64, slots=streams, **options) as engine:
            show(engine, unguessable(streams, length), given.repeats)


if __name__ == "__main__":
    main()
