"""An assistant: a small model that guesses the next tokens of another model from this one's cache.

It has no keys and values of its own: its layers attend to those that the model has stored. From the
last known token, which is not computed yet, and the model's last hidden state, which belongs to the
token before, it guesses one token after the other; the position stays that of the last known token:

    hidden state of token t-1 ─┐
                               ├─ projection ─ layers ─ head ─> token t+1
    embedding of token t ──────┘                 └─ projection ─> hidden state, for token t+2
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from tampu.ml import Tensor
from tampu.nn.cache import LayerCache
from tampu.nn.module import Module


class Assistant(Module):
    """A model that guesses the tokens of another one.

    Attributes:
        options_type: the dataclass of its options.
        options: of its file.
    """

    options_type: ClassVar[type[Any]]
    options: Any

    @abstractmethod
    def check(self, features: int, vocabulary: int) -> None:
        """Require the shapes that a model's hidden states and tokens need.

        Args:
            features: of a hidden state.
            vocabulary: the rows of the model's token embeddings.

        Raises:
            ModelFileError: naming what does not fit.
        """

    @abstractmethod
    def __call__(
        self,
        embeddings: Tensor,
        hidden: Tensor,
        positions: Tensor,
        caches: Sequence[LayerCache],
        vocabulary: int,
    ) -> tuple[Tensor, Tensor]:
        """Return the logits after each token, and the hidden states for the tokens after these.

        Args:
            embeddings: the model's, of each token, (tokens, features).
            hidden: of the token before each, (tokens, features).
            positions: I32, (tokens,).
            caches: of the layers, each that of a layer of the model.
            vocabulary: of how many of the first tokens logits are needed, at least.
        """
