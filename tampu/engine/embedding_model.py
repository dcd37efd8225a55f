"""The methods of `Engine` that make vectors of texts, images and sounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from tampu.engine.arguments import checked
from tampu.engine.captures import Captured, CapturedEmbeddings
from tampu.engine.hybrid import HybridEmbedding, embed_hybrid
from tampu.engine.input_processor import Prompt
from tampu.engine.native import NativeModel
from tampu.engine.python_requests import Message, embedded_prompts
from tampu.engine.request import NO_LORA, Lora
from tampu.engine.requests import Embed
from tampu.engine.steering import GivenSteering, steering_of
from tampu.ml.vectors import UNIT
from tampu.runner.capture_options import capture_options


class EmbeddingModel(NativeModel):
    """A model that makes vectors of texts, images and sounds."""

    @overload
    def embed(
        self,
        texts: str | Sequence[Prompt | Message],
        *,
        normalize: bool = True,
        prompt: str | None = None,
        late_chunking: bool = False,
        lora: Lora = NO_LORA,
        steering: GivenSteering = (),
        capture: None = None,
    ) -> npt.NDArray[np.float32]: ...

    @overload
    def embed(
        self,
        texts: str | Sequence[Prompt | Message],
        *,
        normalize: bool = True,
        prompt: str | None = None,
        late_chunking: bool = False,
        lora: Lora = NO_LORA,
        steering: GivenSteering = (),
        capture: Mapping[str, Any],
    ) -> CapturedEmbeddings: ...

    @checked
    def embed(
        self,
        texts: str | Sequence[Prompt | Message],
        *,
        normalize: bool = True,
        prompt: str | None = None,
        late_chunking: bool = False,
        lora: Lora = NO_LORA,
        steering: GivenSteering = (),
        capture: Mapping[str, Any] | None = None,
    ) -> npt.NDArray[np.float32] | CapturedEmbeddings:
        """Return the embeddings of texts or token ids: pooled final hidden states of length 1.

        A text with images or sounds, for models that take them, is a mapping with `content`,
        `images` and `audio`, as in a message; they are read before the text, in this order. Token
        ids may have prepared ones among them (`prepare_file`), and get no begin and end tokens.

        They are float32, (texts, features). The option `pooling` says how, else the file: mean (the
        default), first or last token. With none, (tokens, features), and without `normalize` they
        have any length. `prompt` names the model's prompt that is put before each text, such as
        "query"; else it is the file's default, and with "" none. With `late_chunking`
        (arXiv:2409.04701) the texts are computed as one, and
        each is the mean of its own tokens. `lora` and `steering` are as for `generate`. With
        `capture`, as there, the vectors come with the values of each text. Raises as `logits`.
        """
        request = Embed(
            embedded_prompts(texts),
            truncate=False,
            late_chunking=late_chunking,
            prompt=prompt,
            norm=UNIT if normalize else -1,
            lora=dict(lora),
            steering=steering_of(steering),
            capture=None if capture is None else capture_options(capture),
            field="texts",
        )
        found = self.ask(request)
        vectors = found.array().copy()
        if capture is None:
            return vectors
        return CapturedEmbeddings(vectors, tuple(map(Captured.decoded, found.captured)))

    @checked
    def embed_hybrid(
        self, texts: str | Sequence[Prompt], *, prompt: str | None = None
    ) -> list[HybridEmbedding]:
        """Return a dense, a sparse and a multi-vector embedding of each text, as BGE-M3 has them.

        `prompt` is as for `embed`. Raises as `logits`, and RequestError for a model without them.
        """
        inputs = embedded_prompts(texts)
        asked = Embed(inputs, truncate=False, prompt=prompt, field="texts")
        return embed_hybrid(self, asked)
