"""llama.cpp as the engine of a model's process, through the `xllamacpp` wheel.

It computes and samples; tokens, prompts, stop strings and the text of an answer are tampu's own, so
that an answer means the same whichever engine gave it. The wheel's server also listens somewhere:
here on a Unix socket in a folder of this user's alone, under a key that nobody knows.
"""

from __future__ import annotations

import json
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from tampu.chat.insert import Inserter
from tampu.chat.kinds import read_template
from tampu.chat.prompt import PromptBuilder
from tampu.chat.template import ChatTemplate
from tampu.errors import (
    ComputeError,
    ContextLengthError,
    OutOfMemoryError,
    RequestError,
    UnsupportedModelError,
)
from tampu.ml.gguf import read_gguf
from tampu.runner.events import Done, Event, Failed, FinishReason, Text, TokenLogprob, Usage
from tampu.runner.protocol import ModelOptions
from tampu.runner.request import GenerateOptions
from tampu.runner.text import TextStream
from tampu.tokenizer import Tokenizer
from tampu.tokenizer.loading import load_tokenizer

# The same name and meaning here and there.
_SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_last_n", "repeat_penalty",
    "presence_penalty", "frequency_penalty", "ignore_eos",
)  # fmt: skip
_LEAST_BATCH = 32  # with fewer than the sequences it aborts


class LlamaServer(Protocol):
    """What this module needs of the wheel."""

    def handle_completions(self, request: str, told: Callable[[str], bool]) -> None:
        """Call `told` with each piece of an answer, until it returns True."""
        ...

    def handle_embeddings(self, request: str) -> str:
        """Return embeddings."""
        ...


class LlamaRequest:
    """A request under way, on a thread of its own."""

    def __init__(
        self, sink: Callable[[Event], None], text: TextStream, ends: frozenset[int]
    ) -> None:
        self._sink = sink
        self._text = text
        self._ends = ends
        self._pending: list[TokenLogprob] = []
        self._began_ns = time.monotonic_ns()
        self._is_cancelled = False
        self._is_over = False
        self.heard_s = time.monotonic()

    @property
    def runs(self) -> bool:
        """Whether more will come of it."""
        return not self._is_over

    def cancel(self) -> None:
        """End it before its next token."""
        self._is_cancelled = True

    def run(self, server: LlamaServer, asked: Mapping[str, Any]) -> None:
        """Ask, and hand on what comes."""
        try:
            server.handle_completions(json.dumps(asked), self._told)
            if not self._is_over:
                self._finish("cancelled" if self._is_cancelled else "stop", {})
        except Exception as error:  # noqa: BLE001 - the top of a thread: the request must hear of it
            self._fail(ComputeError.__name__, f"llama.cpp: {error}")

    def _told(self, line: str) -> bool:
        """Take a piece; return whether no more is wanted."""
        self.heard_s = time.monotonic()
        piece = json.loads(line)
        if "error" in piece:
            self._refuse(piece["error"])
            return True
        [choice] = piece["choices"]
        scores = (choice.get("logprobs") or {}).get("content") or []
        for index, token in enumerate(piece.get("__verbose", {}).get("tokens", ())):
            score = scores[index] if index < len(scores) else None
            if token not in self._ends and self._take(token, score):
                self._finish("stop", piece)
                return True
        if choice["finish_reason"] is not None:
            self._finish("length" if choice["finish_reason"] == "length" else "stop", piece)
        return self._is_cancelled

    def _take(self, token: int, score: Mapping[str, Any] | None) -> bool:
        """Take a token; return whether a stop string is complete with it."""
        top = tuple(
            (int(one["id"]), float(one["logprob"])) for one in (score or {}).get("top_logprobs", ())
        )
        self._pending.append(TokenLogprob(token, float(score["logprob"]) if score else 0.0, top))
        piece = self._text.feed(token)
        if piece.stopped:
            self._pending.clear()
        self._emit(piece.text, has_scores=score is not None)
        return piece.stopped

    def _emit(self, text: str, *, has_scores: bool = False) -> None:
        if text:
            pending, self._pending = tuple(self._pending), []
            tokens = tuple(one.token for one in pending)
            self._sink(Text(text, tokens, pending if has_scores else ()))

    def _finish(self, reason: FinishReason, last: Mapping[str, Any]) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._emit(self._text.flush())
        usage, timings = last.get("usage", {}), last.get("timings", {})
        self._sink(
            Done(
                reason,
                Usage(
                    prompt_tokens=usage.get("prompt_tokens", 0),
                    cached_tokens=timings.get("cache_n", 0),
                    prompt_ns=int(timings.get("prompt_ms", 0) * 1e6),
                    generated_tokens=usage.get("completion_tokens", 0),
                    generated_ns=int(timings.get("predicted_ms", 0) * 1e6),
                    total_ns=time.monotonic_ns() - self._began_ns,
                ),
                stop=self._text.matched,
            )
        )

    def _refuse(self, error: Mapping[str, Any]) -> None:
        message = f"llama.cpp: {error.get('message', error)}"
        if error.get("type") == "exceed_context_size_error":
            self._fail(ContextLengthError.__name__, message)
        elif error.get("code") == 400:
            self._fail(RequestError.__name__, message)
        else:
            self._fail(ComputeError.__name__, message)

    def _fail(self, kind: str, message: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._sink(Failed(kind, message))


class LlamaModel:
    """One model in llama.cpp: what a worker needs of an engine."""

    def __init__(self, server: LlamaServer, tokenizer: Tokenizer, context: int) -> None:
        self._server = server
        self.tokenizer = tokenizer
        self.context = context
        self._requests: WeakSet[LlamaRequest] = WeakSet()

    def see(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Refuse pictures."""
        if any(message.get("images") for message in messages):
            raise RequestError(
                "with the llama.cpp engine models see no pictures: it takes them only in prompts "
                "that it tokenises itself, where a text could become control tokens"
            )
        return messages

    def submit(
        self, prompt: Sequence[int], options: GenerateOptions, sink: Callable[[Event], None]
    ) -> LlamaRequest:
        """Begin a request; `sink` receives its events on a thread of its own.

        Raises:
            RequestError: for an empty prompt, or a grammar that llama.cpp does not have.
            ContextLengthError: for a prompt longer than the context, unless it may be cut.
        """
        if options.prompt_logprobs:
            raise RequestError("with the llama.cpp engine prompts have no log-probabilities")
        tokens = self._fitting(list(prompt), options)
        limit = self.tokenizer.vocabulary_size
        wrong = next((token for token in options.logit_bias if not 0 <= token < limit), None)
        if wrong is not None:
            raise RequestError(f"logit_bias: token {wrong} is not among the {limit} tokens")
        asked = {name: getattr(options, name) for name in _SAMPLING}
        if options.repeat_last_n < 0:
            asked["repeat_last_n"] = self.context
        room = self.context - len(tokens)
        most = options.max_tokens if options.shift else min(options.max_tokens or room, room)
        asked |= {
            "prompt": tokens,
            "n_predict": -1 if most is None else most,
            "n_keep": options.keep,
            "seed": -1 if options.seed is None else options.seed,
            "logit_bias": [[token, bias] for token, bias in options.logit_bias.items()],
            "stream": True,
            "verbose": True,
            **_form(options),
        }
        if options.logprobs:
            asked["n_probs"] = max(options.top_logprobs, 1)
        text = TextStream(options.stop, self.tokenizer.decoder(shown=options.shown))
        request = LlamaRequest(sink, text, self.tokenizer.eos)
        self._requests.add(request)
        thread = threading.Thread(
            target=request.run, args=(self._server, asked), name="tampu-llamacpp", daemon=True
        )
        thread.start()
        return request

    def embed(self, texts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """Return the embeddings (texts, features) of texts given as tokens.

        Raises:
            RequestError: if the model is none for embeddings.
        """
        answer = json.loads(
            self._server.handle_embeddings(json.dumps({"input": list(map(list, texts))}))
        )
        if "error" in answer:
            raise RequestError(f"llama.cpp: {answer['error'].get('message', answer['error'])}")
        rows = np.array([item["embedding"] for item in answer["data"]], np.float32)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        normal: npt.NDArray[np.float32] = rows / np.maximum(lengths, 1e-12)
        return normal

    def warm_up(self) -> None:
        """Do nothing: llama.cpp makes grammars when they come."""

    def stuck(self, patience_s: float) -> str:
        """Return that it gives nothing, when no request has heard anything for ten times as long.

        A prompt gives nothing until it is read, and requests wait for one another.
        """
        heard = [request.heard_s for request in self._requests if request.runs]
        silent_s = time.monotonic() - max(heard, default=time.monotonic())
        if silent_s <= 10 * patience_s:
            return ""
        return f"it hangs: llama.cpp gave nothing for {silent_s:.0f} s"

    def _fitting(self, tokens: list[int], options: GenerateOptions) -> list[int]:
        if not tokens:
            raise RequestError("the prompt is empty: it must have at least one token")
        if len(tokens) < self.context:
            return tokens
        if not options.truncate:
            raise ContextLengthError(
                f"the prompt has {len(tokens)} tokens, the context {self.context}: shorten the "
                "prompt or load the model with a larger context"
            )
        most = self.context - 1
        keep = most - 1 if options.keep < 0 else min(options.keep, most - 1)
        return tokens[:keep] + tokens[len(tokens) - (most - keep) :]


@contextmanager
def load_llamacpp(
    path: Path, options: ModelOptions
) -> Iterator[tuple[LlamaModel, PromptBuilder | None, Inserter | None]]:
    """Load a model into llama.cpp; it is freed at the end.

    Raises:
        UnsupportedModelError: if the wheel is not installed.
        ModelFileError: for a file that is damaged.
        OutOfMemoryError: if llama.cpp does not load it; its own words are in the log.
    """
    try:
        import xllamacpp
    except ImportError as error:
        message = "llama.cpp is not installed here: pip install 'tampu[llamacpp]'"
        raise UnsupportedModelError(message) from error
    if options.adapters:
        raise UnsupportedModelError("with the llama.cpp engine models have no adapters")
    metadata = read_gguf(path).metadata
    tokenizer = load_tokenizer(metadata)
    with tempfile.TemporaryDirectory(prefix="tampu-") as folder:
        parameters = _parameters(xllamacpp.CommonParams(), path, options)
        parameters.hostnames = [str(Path(folder) / "llama.sock")]
        parameters.api_keys = [secrets.token_hex(32)]
        parameters.embedding = True
        if not metadata.has("pooling_type"):  # one that generates: the mean, as the native engine
            parameters.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
        try:
            server = xllamacpp.Server(parameters)
        except RuntimeError as error:
            raise OutOfMemoryError(
                f"llama.cpp cannot load {path.name}: its memory or its tensors do not fit"
            ) from error
        own = options.template
        template = read_template(own) if own else ChatTemplate.from_metadata(metadata)
        prompts = PromptBuilder.for_model(template, tokenizer, metadata, options.parser)
        inserter = Inserter.for_model(template, tokenizer, metadata)
        yield LlamaModel(server, tokenizer, options.context), prompts, inserter
        del server


def _parameters(parameters: Any, path: Path, options: ModelOptions) -> Any:
    parameters.model.path = str(path)
    parameters.n_ctx = options.context * options.slots
    parameters.n_parallel = options.slots
    parameters.n_batch = parameters.n_ubatch = max(options.batch, _LEAST_BATCH)
    parameters.n_gpu_layers = options.gpu_layers
    parameters.main_gpu = options.main_gpu or 0
    if options.tensor_split:
        unused = len(parameters.tensor_split) - len(options.tensor_split)
        parameters.tensor_split = [*options.tensor_split, *[0.0] * unused]
    if options.threads is not None:
        parameters.cpuparams.n_threads = options.threads
        parameters.cpuparams_batch.n_threads = options.threads
    parameters.ctx_shift = True
    parameters.cache_ram_mib = 0
    parameters.warmup = False
    parameters.ui = False
    parameters.endpoint_slots = False
    parameters.verbosity = -1
    return parameters


def _form(options: GenerateOptions) -> dict[str, Any]:
    """Return what llama.cpp is told of the answer's form.

    Raises:
        RequestError: for a grammar that is no JSON schema.
    """
    if options.grammar is None:
        return {}
    [first, *others] = json.loads(options.grammar.source)["grammars"]
    if others or "json_schema" not in first:
        raise RequestError(
            "with the llama.cpp engine an answer can follow a JSON schema, no other grammar"
        )
    schema = {name: part for name, part in first["json_schema"].items() if name != "x-guidance"}
    return {"json_schema": schema}
