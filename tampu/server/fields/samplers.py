"""llama-server's `samplers`: which samplers a request uses, by their names or their letters.

The order is that of `tampu.sampling.chain`. A sampler that is not named is not used: its parameter
gets the value that changes nothing, also where the request has another one. `infill` is used only
where it is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tampu.errors import RequestError, require
from tampu.sampling.chain import SAMPLER_LETTERS, SAMPLERS


def sampler_parameters(given: Any) -> dict[str, Any]:
    """Return the parameters that turn `infill` on if `samplers` names it, and others off if not.

    Args:
        given: names in a list or with semicolons between them, or letters; None: not given.

    Raises:
        RequestError: for another form, an unknown name, or an order that is not supported.
    """
    if given is None:
        return {}
    names = _names(given)
    for name in names:
        require(name in SAMPLERS, f"samplers: unknown {name!r:.40} (known: {', '.join(SAMPLERS)})")
    _check_order(names)
    unused = (values for name, values in SAMPLERS.items() if name not in names)
    found = {name: value for values in unused for name, value in values.items()}
    return {"infill": True} | found


def _names(given: Any) -> Sequence[str]:
    match given:
        case [*names] if all(isinstance(name, str) for name in names):
            return names
        case str(text) if ";" in text or text in SAMPLERS:
            return text.split(";")
        case str(letters):
            return [SAMPLER_LETTERS.get(letter, letter) for letter in letters]
    raise RequestError("samplers must be a list of names, or a text of letters")


def _check_order(names: Sequence[str]) -> None:
    """Refuse another order; the temperature may change logits before or after they are cut.

    It does not change which tokens `top_n_sigma` and `top_k` keep. That it comes after the others
    is llama-server's default, and here as `tampu.sampling.chain` says.
    """
    fixed = [name for name in names if name != "temperature"]
    in_order = fixed == [name for name in SAMPLERS if name in fixed]
    later = names[names.index("temperature") + 1 :] if "temperature" in names else ()
    in_order = in_order and not {"penalties", "dry", "temperature"} & {*later}
    order = ", ".join(name for name in SAMPLERS if name != "temperature")
    require(in_order, f"samplers: only this order is supported: {order}; temperature after dry")
