"""The built-in model really does what it is for, through the engine, on examples it never saw."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tampu import Engine, ToolCall
from tools.train_demo.data import held_out
from tools.train_demo.turns import Example

EXAMPLES = 60
REQUIRED = 0.95
SLOTS = 8


@pytest.fixture(scope="module")
def demo() -> Iterator[Engine]:
    with Engine.load("demo", context=2048, slots=SLOTS) as engine:
        engine.generate("a", max_tokens=1)  # its threads are there before the first test begins
        yield engine


def as_written(call: ToolCall) -> str:
    """Return a call in the form in which the model was trained to write it."""
    written = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


@pytest.mark.parametrize("skill", ["add", "json", "tool", "recall", "chat"])
def test_the_built_in_model_is_right_in_95_of_100_cases(demo: Engine, skill: str) -> None:
    examples = held_out(skill, EXAMPLES, 7)

    def given(example: Example) -> str:
        answer = demo.chat(
            example.messages, tools=example.tools or None, temperature=0.0, max_tokens=120
        )
        return answer.text + "".join(as_written(call) for call in answer.tool_calls)

    with ThreadPoolExecutor(SLOTS) as pool:
        answers = [*zip(examples, pool.map(given, examples), strict=True)]
    wrong = [(one.answer, answer) for one, answer in answers if not one.check(answer)]
    assert len(wrong) <= (1 - REQUIRED) * EXAMPLES, wrong


def test_the_question_of_the_readme_is_answered(demo: Engine) -> None:
    question = [{"role": "user", "content": "What is 27 + 58?"}]
    assert demo.chat(question, temperature=0.0).text == "85"


def test_a_follow_up_uses_what_was_computed_before(demo: Engine) -> None:
    messages = [{"role": "user", "content": "What is 27 + 58?"}]
    first = demo.chat(messages, temperature=0.0)
    messages += [
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "What is 40 + 15?"},
    ]
    second = demo.chat(messages, temperature=0.0)
    assert second.text == "55"
    assert second.usage.cached_tokens >= first.usage.prompt_tokens
