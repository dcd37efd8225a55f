"""llama.cpp's own library for image input, called through its C functions.

`libmtmd.so` lies beside the `libllama.so` that it was built with. Structures that are passed by
value are declared larger than any version's, and only the words that are set here are known: the
number of threads of the tower, the size of the context and of its batches.
"""

from __future__ import annotations

import ctypes
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

_POINTER = ctypes.c_void_p
_INT = ctypes.c_int32
_BATCH = 512


class _Struct(ctypes.Structure):
    _fields_ = [("words", ctypes.c_uint32 * 256)]


class _Text(ctypes.Structure):
    _fields_ = [
        ("text", ctypes.c_char_p),
        ("length", ctypes.c_size_t),
        ("add_special", ctypes.c_bool),
        ("parse_special", ctypes.c_bool),
    ]


_LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, _POINTER)
_LLAMA: dict[str, tuple[Any, list[Any]]] = {
    "llama_log_set": (None, [_LogCallback, _POINTER]),
    "llama_backend_init": (None, []),
    "llama_model_default_params": (_Struct, []),
    "llama_model_load_from_file": (_POINTER, [ctypes.c_char_p, _Struct]),
    "llama_model_get_vocab": (_POINTER, [_POINTER]),
    "llama_vocab_n_tokens": (_INT, [_POINTER]),
    "llama_context_default_params": (_Struct, []),
    "llama_init_from_model": (_POINTER, [_POINTER, _Struct]),
    "llama_set_n_threads": (None, [_POINTER, _INT, _INT]),
    "llama_get_logits_ith": (ctypes.POINTER(ctypes.c_float), [_POINTER, _INT]),
    "llama_get_memory": (_POINTER, [_POINTER]),
    "llama_memory_clear": (None, [_POINTER, ctypes.c_bool]),
}
_MTMD: dict[str, tuple[Any, list[Any]]] = {
    "mtmd_helper_log_set": (None, [_LogCallback, _POINTER]),
    "mtmd_context_params_default": (_Struct, []),
    "mtmd_init_from_file": (_POINTER, [ctypes.c_char_p, _POINTER, _Struct]),
    "mtmd_default_marker": (ctypes.c_char_p, []),
    "mtmd_bitmap_init": (_POINTER, [ctypes.c_uint32, ctypes.c_uint32, ctypes.c_char_p]),
    "mtmd_bitmap_free": (None, [_POINTER]),
    "mtmd_input_chunks_init": (_POINTER, []),
    "mtmd_input_chunks_free": (None, [_POINTER]),
    "mtmd_tokenize": (
        _INT,
        [_POINTER, _POINTER, ctypes.POINTER(_Text), _POINTER, ctypes.c_size_t],
    ),
    "mtmd_helper_eval_chunks": (
        _INT,
        [_POINTER, _POINTER, _POINTER, _INT, _INT, _INT, ctypes.c_bool, ctypes.POINTER(_INT)],
    ),
}


_QUIET = _LogCallback(lambda _level, _text, _user: None)


class Mtmd:
    """One model with image input, and one conversation."""

    def __init__(self, library: Path, text: Path, tower: Path, threads: int, context: int) -> None:
        """Load both files.

        Raises:
            RuntimeError: if the library refuses.
        """
        llama = ctypes.CDLL(str(library.with_name("libllama.so")), mode=ctypes.RTLD_GLOBAL)
        self._call: dict[str, Any] = {}
        for source, functions in ((llama, _LLAMA), (ctypes.CDLL(str(library)), _MTMD)):
            for name, (result, arguments) in functions.items():
                function = self._call[name] = source[name]
                function.restype, function.argtypes = result, arguments
        self._call["llama_log_set"](_QUIET, None)
        self._call["mtmd_helper_log_set"](_QUIET, None)
        self._call["llama_backend_init"]()
        model = self._call["llama_model_load_from_file"](
            str(text).encode(), self._call["llama_model_default_params"]()
        )
        size = self._call["llama_context_default_params"]()
        size.words[0], size.words[2] = context, _BATCH
        self._context = self._call["llama_init_from_model"](model, size)
        self._call["llama_set_n_threads"](self._context, threads, threads)
        sees = self._call["mtmd_context_params_default"]()
        sees.words[5] = threads
        self._tower = self._call["mtmd_init_from_file"](str(tower).encode(), model, sees)
        if not (model and self._context and self._tower):
            raise RuntimeError("llama.cpp cannot load the model")
        self.marker = self._call["mtmd_default_marker"]().decode()
        vocabulary = self._call["llama_model_get_vocab"](model)
        self._tokens = int(self._call["llama_vocab_n_tokens"](vocabulary))
        self._past = 0

    def forget(self) -> None:
        """Start a new conversation."""
        self._call["llama_memory_clear"](self._call["llama_get_memory"](self._context), True)  # noqa: FBT003
        self._past = 0

    def read(self, text: str, picture: bytes | None) -> int:
        """Process a text, with an image in place of `marker`; return the most likely next token.

        Raises:
            RuntimeError: if the library refuses.
        """
        maps = [self._bitmap(picture)] if picture else []
        chunks = self._call["mtmd_input_chunks_init"]()
        given = _Text(text.encode(), len(text.encode()), self._past == 0, parse_special=True)
        array = (_POINTER * max(1, len(maps)))(*maps)
        status = self._call["mtmd_tokenize"](
            self._tower, chunks, ctypes.byref(given), array, len(maps)
        )
        end = _INT()
        status = status or self._call["mtmd_helper_eval_chunks"](
            self._tower, self._context, chunks, self._past, 0, _BATCH, True, ctypes.byref(end)  # noqa: FBT003
        )  # fmt: skip
        if status:
            raise RuntimeError(f"llama.cpp gave {status}")
        self._past = end.value
        self._call["mtmd_input_chunks_free"](chunks)
        for each in maps:
            self._call["mtmd_bitmap_free"](each)
        logits = self._call["llama_get_logits_ith"](self._context, -1)
        return int(np.ctypeslib.as_array(logits, (self._tokens,)).argmax())

    def _bitmap(self, picture: bytes) -> int:
        with Image.open(io.BytesIO(picture)) as image:
            pixels = image.convert("RGB")
        width, height = pixels.size
        return int(self._call["mtmd_bitmap_init"](width, height, pixels.tobytes()))
