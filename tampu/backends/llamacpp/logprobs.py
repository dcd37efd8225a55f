"""The log-probabilities of a prompt's own tokens, which llama.cpp does not give.

It gives those of an answer's tokens. So each token of the prompt is made the answer to what comes
before it: by a bias that lets nothing else win, and that scores do not contain. What came before is
in its cache, so each costs about as much as a token of an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tampu.backends.llamacpp.request import error_of, scored
from tampu.backends.llamacpp.server import LlamaServer
from tampu.runner.events import TokenLogprob

_CERTAIN = 1e9


def prompt_scores(
    server: LlamaServer, tokens: Sequence[int], top: int, token_bytes: Callable[[int], bytes]
) -> Iterator[TokenLogprob]:
    """Yield the scores of all tokens but the first, with those of so many likeliest tokens.

    Raises:
        TampuError: if llama.cpp refuses, or does not answer.
    """
    for index in range(1, len(tokens)):
        answer = server.ask(
            "/completion",
            {
                "prompt": list(tokens[:index]),
                "n_predict": 1,
                "temperature": 0,
                "logit_bias": [[tokens[index], _CERTAIN]],
                "n_probs": max(top, 1),
            },
        )
        if "error" in answer:
            raise error_of(answer["error"])
        [score] = answer["completion_probabilities"]
        yield scored(score, top, token_bytes)
