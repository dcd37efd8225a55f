"""Chooses the model of requests that name none."""

from __future__ import annotations

from collections.abc import Sequence

from tampu.errors import RequestError
from tampu.store.catalog import Catalog, Entry
from tampu.store.library import BUILT_IN, bare_name, listed
from tampu.store.local_model import Origin

_PREFERRED = ("completion",)


def only_model(loaded: Sequence[Entry], catalog: Catalog, can: Sequence[str]) -> Entry:
    """Return the only model in memory that can answer a request, else the only one installed.

    The built-in models are left out if there are others, unless they alone are in memory and
    several of the others can answer, or unless they alone can do something else than chat. Of
    several built-in models the first of `BUILT_IN` is taken.

    Args:
        loaded: the models in memory.
        catalog: of all models.
        can: the capabilities of which the model needs one, the preferred one first; "completion
            audio" are two that it needs together. None: any model can answer, and of several the
            only one that completes texts is taken.

    Raises:
        RequestError: if there are none, or several.
    """
    own = _able(_without_built_in(loaded), can)
    if len(own) == 1:
        return own[0]
    there = catalog.entries()
    every = _without_built_in(there) or there
    able = _able(every, can)
    if can and not able and _PREFERRED[0] not in can:
        able = _able(there, can)
    # A sole model that cannot answer is returned too: its own error says what it cannot do.
    for found in (able, _able(loaded, can), every):
        if len(found) == 1:
            return found[0]
    if not every:
        raise RequestError("model is required: there are no models")
    place = (
        f"{len(own)} models are in memory, not one" if own else "several are here, none in memory"
    )
    names = listed([bare_name(entry.full_name) for entry in own or able or every])
    raise RequestError(
        f"model is required: {place}: {names}; name one in model, or set TAMPU_DEFAULT_MODEL"
    )


def _without_built_in(entries: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.model.origin is not Origin.BUILT_IN]


def _able(entries: Sequence[Entry], can: Sequence[str]) -> Sequence[Entry]:
    """Return those that have the first of these capabilities that any has.

    If only built-in models are among them, the first of these is returned.
    """
    if len(entries) == 1 and not can:
        return entries
    for capability in can or _PREFERRED:
        needed = {*capability.split()}
        if able := [entry for entry in entries if needed <= {*entry.info.capabilities}]:
            if _without_built_in(able):
                return able
            return [min(able, key=lambda entry: BUILT_IN.index(bare_name(entry.full_name)))]
    return ()
