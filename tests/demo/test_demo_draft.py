"""The built-in draft model guesses what the built-in model writes, on examples it never saw."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.drafting import Cheap, Free

from tampu import ChatCompletion, Engine
from tampu.runner.speculation import Speculation
from tools.train_demo.data import TEXT_SKILLS, held_out
from tools.train_demo.turns import Example

EXAMPLES = 20
SLOTS = 4
REQUIRED = 0.6


@pytest.fixture(scope="module")
def demo() -> Iterator[Engine]:
    with Engine.load("demo", draft="demo-draft", context=2048, slots=SLOTS) as engine:
        engine.generate("a", max_tokens=1)  # its threads are there before the first test begins
        yield engine


def ask(engine: Engine, examples: list[Example]) -> list[ChatCompletion]:
    """Return answers to questions, some of them at once, and forget these."""

    def answer(example: Example) -> ChatCompletion:
        tools = example.tools or None
        return engine.chat(example.messages, tools=tools, temperature=0.0, max_tokens=120)

    with ThreadPoolExecutor(SLOTS) as pool:
        found = list(pool.map(answer, examples))
    engine.runner.call(engine.model.scheduler.kv_manager.reset)
    return found


def test_most_of_its_guesses_are_right_and_answers_are_the_same(demo: Engine) -> None:
    examples = [each for skill in TEXT_SKILLS for each in held_out(skill, EXAMPLES, 7)]
    drafts = demo.model.scheduler.drafts
    source = drafts.source
    assert isinstance(source, Speculation)
    assert source.model is not None
    drafts.source = None
    wanted = ask(demo, examples)
    drafts.source = source
    source.times = Cheap()  # the number of drafts does not depend on the machine
    source.model.times = Free()
    found = ask(demo, examples)
    assert source.model is not None, "it failed"
    assert [each.tokens for each in found] == [each.tokens for each in wanted]
    drafted = sum(each.usage.drafted_tokens for each in found)
    accepted = sum(each.usage.accepted_tokens for each in found)
    assert accepted >= REQUIRED * drafted, (accepted, drafted)
    assert drafted > 2 * len(examples)
