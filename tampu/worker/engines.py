"""Which engine computes a model: tampu's own, or llama.cpp for what that does not know."""

from __future__ import annotations

from importlib.util import find_spec

from tampu.models import architectures
from tampu.settings.settings import ENGINES

AUTO, NATIVE, LLAMACPP = ENGINES


def choose_engine(wanted: str, architecture: str) -> str:
    """Return the engine for a model of an architecture.

    Args:
        wanted: native or llamacpp, or auto: llama.cpp for architectures that the native engine
            lacks, if it is installed.
        architecture: of the model.
    """
    if wanted != AUTO:
        return wanted
    is_known = architecture in architectures()
    return NATIVE if is_known or find_spec("xllamacpp") is None else LLAMACPP
