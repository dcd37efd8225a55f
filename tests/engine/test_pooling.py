"""Which pooling a file states, by GGUF's numbers."""

from __future__ import annotations

import pytest

from tampu.engine.pooling import pooling_of
from tampu.errors import ModelFileError
from tampu.ml.metadata import Metadata


@pytest.mark.parametrize(
    ("stated", "name"),
    [(None, "mean"), (-1, "mean"), (0, "none"), (1, "mean"), (2, "cls"), (3, "last"), (4, "rank")],
)
def test_each_number_is_a_pooling(stated: int | None, name: str) -> None:
    keys = {} if stated is None else {"bert.pooling_type": stated}
    assert pooling_of(Metadata({"general.architecture": "bert", **keys}), None) == name


@pytest.mark.parametrize("stated", [5, 7, -2, 1 << 40])
def test_another_number_is_an_error(stated: int) -> None:
    metadata = Metadata({"general.architecture": "bert", "bert.pooling_type": stated})
    for wanted in (None, "mean"):
        with pytest.raises(ModelFileError, match=f"pooling_type.*{stated} is not known.*2 .cls"):
            pooling_of(metadata, wanted)
