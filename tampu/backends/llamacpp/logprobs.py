"""The logprobs of a prompt's tokens, which llama.cpp does not return.

It returns those of generated tokens. So each token of the prompt is generated from the tokens
before it, by a bias that lets no other token win and that logprobs do not include. The prefix is in
its cache, so each token costs about as much as a generated one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tampu.backends.llamacpp.request import error_of, token_logprob
from tampu.backends.llamacpp.server import LlamaServer
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
        response = server.request(
            "/completion",
            {
                "prompt": list(tokens[:index]),
                "n_predict": 1,
                "temperature": 0,
                "logit_bias": [[tokens[index], _CERTAIN]],
                "n_probs": max(top, 1),
            },
        )
        if "error" in response:
            raise error_of(response["error"])
        [entry] = response["completion_probabilities"]
        yield token_logprob(entry, top, token_bytes)
