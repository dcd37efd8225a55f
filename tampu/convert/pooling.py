"""How a sentence-transformers checkpoint makes one embedding of a text's hidden states."""

from __future__ import annotations

from tampu.convert.checkpoint import Checkpoint
from tampu.errors import UnsupportedModelError

# The keys of a pooling module's settings, and GGUF's numbers for them.
_KINDS = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3}
_USUAL = "1_Pooling/config.json"


def pooling_metadata(checkpoint: Checkpoint, architecture: str) -> dict[str, object]:
    """Return the key of the pooling; nothing for a checkpoint that states none.

    Raises:
        UnsupportedModelError: for pooling of another kind than mean, first or last token.
    """
    settings = checkpoint.json(_USUAL)
    if settings is None:
        return {} if architecture != "bert" else {f"{architecture}.pooling_type": 1}
    asked = {key for key, value in settings.items() if key.startswith("pooling_mode") and value}
    if len(asked) != 1 or not asked <= _KINDS.keys():
        raise UnsupportedModelError(
            f"{_USUAL}: {', '.join(sorted(asked)) or 'no pooling'}; known is one of "
            f"{', '.join(_KINDS)}"
        )
    return {f"{architecture}.pooling_type": _KINDS[asked.pop()]}
