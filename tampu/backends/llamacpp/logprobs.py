"""The logprobs of given tokens, which llama.cpp does not return.

It returns those of generated tokens. So each token is generated from the tokens
before it, by a bias that lets no other token win and that logprobs do not include. The prefix is in
its cache, so each token costs about as much as a generated one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tampu.backends.llamacpp.request import error_of, token_logprob
from tampu.backends.llamacpp.server import LlamaServer
from tampu.cancellation import check_cancelled
from tampu.runner.events import TokenLogprob

_CERTAIN = 1e9


def prompt_logprobs(
    server: LlamaServer, tokens: Sequence[int], top: int, token_bytes: Callable[[int], bytes]
) -> Iterator[TokenLogprob]:
    """Yield the logprobs of all tokens but the first, with the `top` most likely tokens at each.

    Raises:
        TampuError: if llama.cpp returns an error, or does not respond.
    """
    for index in range(1, len(tokens)):
        entry = _entry_of(server, tokens[:index], tokens[index], top)
        yield token_logprob(entry, top, token_bytes)


def continuation_logprobs(
    server: LlamaServer, prompt: Sequence[int], continuations: Sequence[Sequence[int]]
) -> list[tuple[float, ...]]:
    """Return the log-probabilities of the tokens of each continuation after a prompt.

    Raises:
        TampuError: as `prompt_logprobs`.
        RequestCancelledError: if the work of this thread is not wanted any more.
    """
    known: dict[tuple[int, ...], float] = {}
    for tokens in continuations:
        for index, token in enumerate(tokens):
            path = tuple(tokens[: index + 1])
            if path not in known:
                check_cancelled()
                entry = _entry_of(server, [*prompt, *path[:-1]], token, 0)
                known[path] = float(entry["logprob"])
    return [
        tuple(known[tuple(tokens[: index + 1])] for index in range(len(tokens)))
        for tokens in continuations
    ]


def _entry_of(server: LlamaServer, tokens: Sequence[int], token: int, top: int) -> Any:
    """Return llama.cpp's entry of the probability of a token after others."""
    response = server.request(
        "/completion",
        {
            "prompt": list(tokens),
            "n_predict": 1,
            "temperature": 0,
            "logit_bias": [[token, _CERTAIN]],
            "n_probs": max(top, 1),
        },
    )
    if "error" in response:
        raise error_of(response["error"])
    [entry] = response["completion_probabilities"]
    return entry
