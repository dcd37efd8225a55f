"""The prompts of embedding models: texts that they read before a text, one for each purpose.

They are those of sentence-transformers, in keys of tampu's own, which other readers ignore.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import msgspec

from tampu.errors import ModelFileError, RequestError
from tampu.ml.metadata import Metadata

KEY = "tokenizer.tampu.prompts"
DEFAULT_KEY = "tokenizer.tampu.default_prompt"


@dataclass(frozen=True, slots=True)
class EmbeddingPrompts:
    """The prompts of one model.

    Attributes:
        texts: by name.
        default: the name of the one that is used if none is asked for; "": none is.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    default: str = ""

    @classmethod
    def read(cls, metadata: Metadata) -> Self:
        """Return the prompts in a file.

        Raises:
            ModelFileError: if they are damaged.
        """
        try:
            texts = msgspec.json.decode(metadata.string(KEY, "{}"), type=dict[str, str])
        except msgspec.DecodeError as error:
            raise ModelFileError(f"key '{KEY}'", "is not a JSON object of texts") from error
        default = metadata.string(DEFAULT_KEY, "")
        if default and default not in texts:
            raise ModelFileError(f"key '{DEFAULT_KEY}'", f"{default!r} is not one of the prompts")
        return cls(texts, default)

    def keys(self) -> dict[str, object]:
        """Return them as keys of a file; without prompts there are none."""
        keys: dict[str, object] = {}
        if self.texts:
            keys[KEY] = msgspec.json.encode(self.texts).decode()
        return keys | {DEFAULT_KEY: self.default} if self.default else keys

    def find(self, name: str | None) -> str:
        """Return the text of a prompt; None: the default one, "": none.

        Raises:
            RequestError: if there is no such prompt; it names those that there are.
        """
        wanted = self.default if name is None else name
        if wanted and wanted not in self.texts:
            known = ", ".join(map(repr, self.texts)) or "none"
            raise RequestError(f"prompt {wanted!r} is not known; the model has: {known}")
        return self.texts[wanted] if wanted else ""
