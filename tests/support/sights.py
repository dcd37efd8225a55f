"""How transformers' models take pictures: one entry for each family that sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

Floats = npt.NDArray[np.float32]
Inputs = dict[str, Any]


@dataclass(frozen=True)
class Sight:
    """One family.

    Attributes:
        process: pictures -> the model's keyword arguments.
        features: (model, arguments of one picture) -> its embedding.
        image: the token in whose place an embedding's row stands.
        marks: the argument that says which tokens are images', for models that have one.
        most: pictures that one text may have.
        first: whether the picture must be the first input.
    """

    process: Callable[[Sequence[Image.Image]], Inputs]
    features: Callable[[Any, Inputs], Any]
    image: int
    marks: str | None = None
    most: int = 2
    first: bool = False

    def embed(self, model: Any, image: Image.Image) -> Floats:
        """Return the embedding of a picture: (rows, features)."""
        found = self.features(model, self.process([image]))
        while not torch.is_tensor(found):
            found = found.pooler_output if hasattr(found, "pooler_output") else found[0]
        return found.reshape(-1, found.shape[-1]).float().numpy()

    def read(self, model: Any, tokens: Sequence[int], images: Sequence[Image.Image]) -> Floats:
        """Return the logits of every input."""
        inputs = self.process(images) if images else {}
        ids = torch.tensor([list(tokens)])
        if self.marks:
            inputs[self.marks] = (ids == self.image).long()
        return model(input_ids=ids, **inputs).logits[0].float().numpy()


def _gemma3(images: Sequence[Image.Image]) -> Inputs:
    processor = Gemma3ImageProcessorPil(size={"height": 112, "width": 112})
    return {"pixel_values": processor(list(images), return_tensors="pt")["pixel_values"]}


def _pixels(model: Any, inputs: Inputs) -> Any:
    return model.model.get_image_features(inputs["pixel_values"])


SIGHTS: dict[str, Sight] = {
    "gemma3_vision": Sight(_gemma3, _pixels, image=8, marks="token_type_ids"),
}
