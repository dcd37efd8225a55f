"""Messages between the server and a worker: any path and any text arrives."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from tampu.engine.load_options import LoadOptions
from tampu.engine.sent_paths import received_options, received_path, sent_options, sent_path
from tampu.text import valid_text
from tampu.worker.protocol import Load, to_body, to_command

PATHS = st.binary(min_size=1, max_size=50).filter(lambda path: b"\0" not in path)


@given(PATHS, PATHS, st.text(st.characters(codec=None)))
def test_paths_keep_their_bytes_and_texts_are_valid(path: bytes, adapter: bytes, text: str) -> None:
    options = LoadOptions(name=text, adapters=((os.fsdecode(adapter), 1.0),))
    found = to_command(to_body(Load(sent_path(os.fsdecode(path)), sent_options(options))))
    assert isinstance(found, Load)
    assert os.fsencode(received_path(found.path)) == path
    assert os.fsencode(received_options(found.options).adapters[0][0]) == adapter
    assert found.options.name == valid_text(text)
