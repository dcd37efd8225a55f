"""Messages between the server and a worker: any path and any text arrives."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from tampu.engine.load_options import LoadOptions
from tampu.text import valid_text
from tampu.worker.protocol import Load, to_body, to_command


@given(st.binary(min_size=1, max_size=50), st.text(st.characters(codec=None)))
def test_a_path_keeps_its_bytes_and_a_text_is_valid(path: bytes, text: str) -> None:
    adapters = ((text, 1.0),)
    load = Load(path, LoadOptions(name=text, adapters=adapters))
    found = to_command(to_body(load))
    assert found == Load(
        path, LoadOptions(name=valid_text(text), adapters=((valid_text(text), 1.0),))
    )
    assert isinstance(found, Load)
    assert os.fsencode(os.fsdecode(found.path)) == path
