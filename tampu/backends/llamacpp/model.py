"""A model in llama.cpp: what a worker needs of an engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

import msgspec
import numpy as np
import numpy.typing as npt

from tampu.backends.llamacpp.logprobs import prompt_scores
from tampu.backends.llamacpp.mmproj import MultimodalProjector
from tampu.backends.llamacpp.request import LlamaRequest, error_of
from tampu.backends.llamacpp.retokenize import Retokenizer
from tampu.backends.llamacpp.server import LlamaServer, Pieces
from tampu.backends.llamacpp.structured_output import StructuredOutputs
from tampu.chat.images import Item, length
from tampu.errors import ContextLengthError, RequestError
from tampu.ml.vectors import normalize
from tampu.runner.detokenizer import Detokenizer
from tampu.runner.events import Event
from tampu.runner.reasoning_budget import ReasoningBudget, reasoning_budget
from tampu.runner.request import GenerateOptions
from tampu.sampling.parameters import Use, names_of
from tampu.tokenizer import Tokenizer


class LlamaModel:
    """One model in llama.cpp."""

    def __init__(
        self,
        server: LlamaServer,
        tokenizer: Tokenizer,
        context: int,
        forms: StructuredOutputs,
        eyes: MultimodalProjector | None = None,
    ) -> None:
        """Take the model that a server has.

        Args:
            server: llama.cpp's.
            tokenizer: of the model.
            context: the length of a slot's context.
            forms: of its answers.
            eyes: what lets it see; None: it does not.
        """
        self._server = server
        self._forms = forms
        self._eyes = eyes
        self.tokenizer = tokenizer
        self.context = context
        self._untold = Retokenizer(tokenizer)
        self._requests: WeakSet[LlamaRequest] = WeakSet()

    def prepare_images(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return messages whose `images` are as the model takes them.

        Raises:
            RequestError: if it takes none, and for files that are not images.
        """
        if not any(message.get("images") for message in messages):
            return messages
        eyes = self._eyes
        if eyes is None:
            raise RequestError(
                "the model takes no images: with the llama.cpp engine it must have a projector "
                "in a file of its own (mmproj)"
            )
        return [
            {**message, "images": [eyes.look(image) for image in message["images"]]}
            if message.get("images")
            else message
            for message in messages
        ]

    def submit(
        self, prompt: Sequence[Item], options: GenerateOptions, sink: Callable[[Event], None]
    ) -> LlamaRequest:
        """Begin a request; `sink` receives its events on a thread of its own.

        Raises:
            RequestError: for an empty prompt, and one with pictures that llama.cpp would misread.
            GrammarError: for a grammar that is wrong.
            ContextLengthError: for a prompt longer than the context, unless it may be cut.
        """
        items = self._fitting(list(prompt), options)
        tokens = [item for item in items if isinstance(item, int)]
        has_pictures = len(tokens) < len(items)
        if options.prompt_logprobs and has_pictures:
            raise RequestError("a prompt with pictures has no log-probabilities")
        constraint = self._forms.constraint(options)
        asked = self._asked(items, options)

        most = asked["n_predict"]

        def ask(said: Sequence[int]) -> Pieces:
            prompt = self._eyes.prompt([*items, *said]) if self._eyes and has_pictures else None
            left = {"n_predict": most - len(said) if most >= 0 else most}
            return self._server.complete({**asked, **left, "prompt": prompt or [*tokens, *said]})

        text = Detokenizer(options.stop, self.tokenizer.decoder(shown=options.shown))
        request = LlamaRequest(
            ask,
            msgspec.structs.replace(options, max_tokens=most if most >= 0 else None),
            sink,
            text,
            self.tokenizer.eos,
            self._untold,
            self.tokenizer.token_bytes,
            constraint,
            self._budget(options),
        )
        self._requests.add(request)
        wants_scores = tokens if options.prompt_logprobs else []
        token_bytes = self.tokenizer.token_bytes
        scores = prompt_scores(self._server, wants_scores, options.top_logprobs, token_bytes)
        thread = threading.Thread(
            target=request.run, args=(scores,), name="tampu-llamacpp", daemon=True
        )
        thread.start()
        return request

    def embed(self, texts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """Return the embeddings (texts, features) of texts given as tokens.

        Raises:
            RequestError: if the model is none for embeddings.
        """
        answer = self._server.ask("/v1/embeddings", {"input": list(map(list, texts))})
        if "error" in answer:
            raise RequestError(str(error_of(answer["error"])))
        return normalize(np.array([item["embedding"] for item in answer["data"]], np.float32))

    def warm_up(self) -> None:
        """Make what the first grammar and the first image need, if the model takes any."""
        self._forms.prepare()
        if self._eyes is not None:
            self._eyes.prepare()

    def hang_reason(self, patience_s: float) -> str:
        """Return that it gives nothing, when no request has heard anything for ten times as long.

        A prompt gives nothing until it is read, and requests wait for one another.
        """
        heard = [request.heard_s for request in self._requests if request.runs]
        silent_s = time.monotonic() - max(heard, default=time.monotonic())
        if silent_s <= 10 * patience_s:
            return ""
        return f"it hangs: llama.cpp gave nothing for {silent_s:.0f} s"

    def _asked(self, items: Sequence[Item], options: GenerateOptions) -> dict[str, Any]:
        """Return what llama.cpp is asked for, but for the prompt.

        Raises:
            RequestError: for what it does not have.
        """
        limit = self.tokenizer.vocabulary_size
        wrong = next((token for token in options.logit_bias if not 0 <= token < limit), None)
        if wrong is not None:
            raise RequestError(f"logit_bias: token {wrong} is not among the {limit} tokens")
        asked: dict[str, Any] = {name: getattr(options, name) for name in names_of(Use.SAMPLING)}
        for name in ("repeat_last_n", "dry_penalty_last_n"):
            if asked[name] < 0:
                asked[name] = self.context
        asked["dry_sequence_breakers"] = [*options.dry_sequence_breakers] or [""]  # not none
        room = self.context - length(items)
        most = options.max_tokens if options.shift else min(options.max_tokens or room, room)
        asked |= {
            "n_predict": -1 if most is None else most,
            "n_keep": options.keep,
            "seed": -1 if options.seed is None else options.seed,
            "logit_bias": [*map(list, self._forms.biases(options).items())],
            "return_tokens": True,
            "timings_per_token": True,
            **self._forms.asked(options),
        }
        if options.logprobs:
            asked["n_probs"] = max(options.top_logprobs, 1)
        return asked

    def _budget(self, options: GenerateOptions) -> ReasoningBudget | None:
        """Return the budget of an answer's thoughts, if they have one.

        Raises:
            RequestError: if the answer also has a form, which llama.cpp begins anew with it.
        """
        budget = reasoning_budget(options, self.tokenizer)
        if budget is not None and options.grammar is not None:
            raise RequestError(
                "with the llama.cpp engine an answer has a form, or its thoughts a budget "
                "(think_budget), not both"
            )
        return budget

    def _fitting(self, items: list[Item], options: GenerateOptions) -> list[Item]:
        if not items:
            raise RequestError("the prompt is empty: it must have at least one token")
        count = length(items)
        if count < self.context:
            return items
        if not options.truncate or count > len(items):
            raise ContextLengthError(
                f"the prompt has {count} tokens, the context {self.context}: shorten the "
                "prompt or load the model with a larger context"
            )
        most = self.context - 1
        keep = most - 1 if options.keep < 0 else min(options.keep, most - 1)
        return items[:keep] + items[len(items) - (most - keep) :]
