"""`tampu bench`: speeds of a model, and of llama.cpp beside it."""

from tampu.errors import RequestError

PEER = "llama.cpp"


def check_peer(peer: str | None) -> None:
    """Check the name of an engine to compare with; None: none.

    Raises:
        RequestError: if it is unknown.
    """
    if peer not in (None, PEER):
        raise RequestError(f"unknown peer {peer!r}: only {PEER} is supported")
