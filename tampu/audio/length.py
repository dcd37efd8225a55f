"""How long a sound may be."""

from __future__ import annotations

from tampu.audio.features import Samples
from tampu.audio.formats import SAMPLE_RATE
from tampu.errors import RequestError


def check_length(samples: Samples, seconds: int) -> None:
    """Refuse a sound that is empty, or longer than so many seconds.

    Raises:
        RequestError: naming the limit.
    """
    if not 0 < len(samples) <= seconds * SAMPLE_RATE:
        raise RequestError(
            f"a sound must have at least one sample and at most {seconds} seconds, "
            f"not {len(samples) / SAMPLE_RATE:.1f}"
        )
