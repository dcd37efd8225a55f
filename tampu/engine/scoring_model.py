"""The methods of `Engine` that say how probable answers are; nothing is generated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tampu.chat.media import Item
from tampu.engine.arguments import checked
from tampu.engine.input_processor import Prompt, flat
from tampu.engine.native import NativeModel
from tampu.engine.python_requests import Message, PythonRequests
from tampu.engine.questions import RERANK_INSTRUCTION, Decisions, Question
from tampu.engine.request import NO_LORA, Lora
from tampu.engine.requests import Decide, Pair, Rank, Rerank, Score, ScoredContinuation
from tampu.engine.scoring import Continuation, Prompts, Scored, with_continuations
from tampu.engine.steering import GivenSteering, steering_of


class ScoringModel(NativeModel):
    """A model that gives answers and texts probabilities."""

    _python: PythonRequests

    @checked
    def decide(
        self,
        input: str | Sequence[Message],
        questions: Sequence[Question],
        *,
        tools: Sequence[Message] | None = None,
        lora: Lora = NO_LORA,
        steering: GivenSteering = (),
    ) -> Decisions:
        """Return the probabilities of the answers to questions about an input; nothing is written.

        Args:
            input: a text, or messages as for `chat`.
            questions: 1 to 400 of `Predicate`, `Choice` and `Score`; the input is computed once.
            tools: functions that were offered in the conversation.
            lora: loaded adapters, as for `generate`.
            steering: changes of values inside the model, as for `generate`.

        Raises:
            RequestError: for invalid questions, and as for `chat`.
            ContextLengthError: if a question with the input is longer than the context.
        """
        messages = [{"role": "user", "content": input}] if isinstance(input, str) else input
        prompt = self._python.conversation(messages, {"tools": tools})
        changes = steering_of(steering)
        asked = Decide(prompt, tuple(questions), lora=dict(lora), steering=changes)
        return self.ask(asked).decisions

    @checked
    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        instruction: str = RERANK_INSTRUCTION,
        lora: Lora = NO_LORA,
        steering: GivenSteering = (),
    ) -> list[float]:
        """Return the probability, 0 to 1, that each document matches a query.

        A model with a rank head reads both together; any other is asked as Qwen3-Reranker was
        trained. `instruction` says what a match is, `lora` names loaded adapters, and `steering`
        changes values inside the model, as for `generate`.

        Raises:
            RequestError: if it has no rank head and no chat template, or takes no instruction.
            ContextLengthError: naming the document that is too long.
        """
        changes = steering_of(steering)
        asked = Rerank(query, tuple(documents), instruction, lora=dict(lora), steering=changes)
        found = self.ask(asked)
        return [decision.probabilities[0] for decision in found.decisions.answers]

    @checked
    def score(
        self,
        prompt: Prompt,
        continuations: Sequence[Continuation],
        lora: Lora = NO_LORA,
        steering: GivenSteering = (),
    ) -> list[ScoredContinuation]:
        """Return how probable each continuation of a prompt is; nothing is generated.

        Args:
            prompt: text, token ids, or `chat_prompt` of a conversation.
            continuations: texts or token ids. A text gets no BOS; where white space at the end of
                the prompt and merged tokens belong is said in docs/python.md.
            lora: loaded adapters, as for `generate`.
            steering: changes of values inside the model, as for `generate`.

        Raises:
            RequestError: for an empty prompt or continuation, and for unknown tokens.
            ContextLengthError: if the prompt with a continuation is longer than the context.
        """
        given = prompt if isinstance(prompt, str) else flat(prompt)
        prompts = with_continuations(self.tokenizer, given, continuations)
        shared = prompts[0][0] if prompts else ()
        changes = steering_of(steering)
        found = self.ask(Score(shared, prompts, lora=dict(lora), steering=changes))
        return [one for each in found.prompts for one in each.continuations]

    @checked
    def loglikelihood(
        self,
        shared: Sequence[Item],
        prompts: Prompts,
        lora: Lora = NO_LORA,
        steering: GivenSteering = (),
    ) -> list[Scored]:
        """Return log-probabilities of continuations of several prompts, all as token ids.

        Each prompt begins with `shared`, and has its continuations with it. `score` is for one.
        """
        changes = steering_of(steering)
        found = self.ask(Score(shared, prompts, lora=dict(lora), steering=changes))
        return [*map(Scored.of, found.prompts)]

    @checked
    def rank(
        self, pairs: Sequence[Pair], lora: Lora = NO_LORA, steering: GivenSteering = ()
    ) -> list[npt.NDArray[np.float32]]:
        """Return the scores (labels,) of queries with documents, by the model's rank head."""
        found = self.ask(Rank(pairs, lora=dict(lora), steering=steering_of(steering)))
        return [np.array(scores, np.float32) for scores in found.scores]
