"""Integers of any size between server and worker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.engine.prompts import ChatPrompt, StructuredOutput
from tampu.engine.requests import Decode, Generate
from tampu.errors import RequestError
from tampu.runner.generate_options import GenerateOptions
from tampu.worker.protocol import Run, to_body, to_command

VALUES = st.recursive(
    st.integers(-(10**40), 10**40) | st.booleans() | st.none() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(VALUES)
def test_a_message_comes_back_as_it_was(value: object) -> None:
    prompt = ChatPrompt(messages=({"role": "user", "content": "x", "media": [b"\xff"]},))
    structure = StructuredOutput(format={"const": value})
    sent = Run(1, Generate(prompt, GenerateOptions(), structure))
    assert repr(to_command(to_body(sent))) == repr(sent)


def test_a_field_of_64_bits_has_no_more() -> None:
    with pytest.raises(RequestError, match="more than 64 bits"):
        to_body(Run(1, Decode((2**64,))))
