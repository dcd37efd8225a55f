"""The head of models that rank: from a token's final hidden state to the scores of labels."""

from __future__ import annotations

from tampu.ml import Tensor
from tampu.nn.linear import Linear
from tampu.nn.module import Module, gguf


class RankHead(Module):
    """output(tanh(dense x)), without the part that a file lacks.

    RoBERTa and BERT classify by both, with BERT's pooler as `dense`; Qwen3-Reranker by `output`.
    """

    dense: Linear | None = gguf("cls")
    output: Linear | None = gguf("cls.output")

    @property
    def is_there(self) -> bool:
        """Whether the file has one."""
        return self.dense is not None or self.output is not None

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return the scores (m, labels) of final hidden states (m, features)."""
        x = self.dense(hidden).tanh() if self.dense else hidden
        return self.output(x) if self.output else x
