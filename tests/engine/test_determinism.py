"""What cannot be computed deterministically is refused when a model is loaded, by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines import SMALL
from support.tiny_model import Tiny, write_tiny

from tampu.engine.engine import Engine
from tampu.engine.load_options import LoadOptions, options_from_settings
from tampu.errors import RequestError, UnsupportedModelError
from tampu.ml.kernels import library
from tampu.settings.settings import Settings


def load(folder: Path, tiny: Tiny | None = None, **options: Any) -> Engine:
    return Engine.load(write_tiny(folder / "m.gguf", tiny), deterministic=True, **SMALL | options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache_type": "q4_0"}, "with cache type q4_0: use f16, f32 or q8_0"),
        ({"cache_type": "f16/q4_0"}, "with cache type q4_0"),
        ({"flash_attention": False}, "with flash_attention off: leave it unset"),
        ({"kernels": "off"}, "with kernels off: set them to on"),
        ({"kernels": "products"}, "with kernels products"),
        ({"engine": "llamacpp"}, r"with llama\.cpp: use the engine native"),
    ],
)
def test_options_that_do_not_go_with_it(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=f"deterministic cannot be used {message}"):
        load(tmp_path, **options)


@pytest.mark.parametrize("features", [6, 580])
def test_heads_that_the_kernels_do_not_know(tmp_path: Path, features: int) -> None:
    with pytest.raises(UnsupportedModelError, match=f"heads of {features} features"):
        load(tmp_path, Tiny(head_dim=features))


def test_a_processor_without_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_load", lambda _path: None)
    with pytest.raises(RequestError, match="with this CPU, for which there are no kernels"):
        load(tmp_path)


def test_nothing_is_refused_where_it_is_off(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", Tiny(head_dim=32))
    with Engine.load(path, kernels="off", cache_type="q4_0", **SMALL) as engine:
        assert np.isfinite(engine.logits([1, 2, 3])).all()


def test_the_setting_is_an_option_of_loading() -> None:
    for word, expected in (("1", True), ("0", False)):
        settings = Settings.from_environment({"HOME": "/home/runa", "TAMPU_DETERMINISTIC": word})
        assert options_from_settings(settings).deterministic is expected
    assert not LoadOptions().deterministic


def test_answers_are_those_of_the_usual_graph(tmp_path: Path) -> None:
    """But for rounding, and with the same graphs for many steps."""
    with load(tmp_path) as ours, Engine.load(tmp_path / "m.gguf", **SMALL) as usual:
        text = [int(token) for token in np.random.default_rng(0).integers(3, 60, 40)]
        np.testing.assert_allclose(ours.logits(text), usual.logits(text), rtol=0.05, atol=0.05)
