"""Hidden states that stay on the device from one step to the next."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from tampu.ml import Backend, GGMLType
from tampu.ml.device_states import DeviceStates


def test_states_are_read_from_the_rows_that_they_were_written_to() -> None:
    backend = Backend(threads=1)
    kept = DeviceStates(backend, 4, 3)
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    with closing(backend.context(16)) as writing:
        states = writing.input("states", (2, 3), GGMLType.F32)
        rows = writing.input("rows", (2,), GGMLType.I64)
        writing.forward(kept.store(states, rows))
        result = writing.output(states * 2.0)
        written = np.array([2, kept.spare], np.int64)
        backend.compute(writing, [(states, values), (rows, written)], [result])
    with closing(backend.context(16)) as reading:
        rows = reading.input("rows", (3,), GGMLType.I32)
        result = reading.output(kept.load(rows))
        chosen = np.array([kept.spare, 2, 0], np.int32)
        [found] = backend.compute(reading, [(rows, chosen)], [result]).outputs
    assert found.tolist() == [*values[::-1].tolist(), [0, 0, 0]]
    assert kept.size_bytes >= 5 * 3 * 4
    kept.close()
    kept.close()
    backend.close()
