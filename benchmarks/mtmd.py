"""llama.cpp's own library for image and audio input, called through its C functions.

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
import numpy.typing as npt
from PIL import Image

_POINTER = ctypes.c_void_p
_INT = ctypes.c_int32
_BATCH = 512


class _Struct(ctypes.Structure):
    _fields_ = [("words", ctypes.c_uint32 * 256)]


class _Batch(ctypes.Structure):
    _fields_ = [("count", _INT), ("arrays", _POINTER * 6)]


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
    "llama_batch_get_one": (_Batch, [ctypes.POINTER(_INT), _INT]),
    "llama_decode": (_INT, [_POINTER, _Batch]),
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
    "mtmd_bitmap_init_from_audio": (_POINTER, [ctypes.c_size_t, ctypes.c_char_p]),
    "mtmd_bitmap_free": (None, [_POINTER]),
    "mtmd_input_chunks_init": (_POINTER, []),
    "mtmd_input_chunks_free": (None, [_POINTER]),
    "mtmd_tokenize": (
        _INT,
        [_POINTER, _POINTER, ctypes.POINTER(_Text), _POINTER, ctypes.c_size_t],
    ),
    "mtmd_input_chunks_size": (ctypes.c_size_t, [_POINTER]),
    "mtmd_input_chunks_get": (_POINTER, [_POINTER, ctypes.c_size_t]),
    "mtmd_input_chunk_get_type": (ctypes.c_int, [_POINTER]),
    "mtmd_encode_chunk": (_INT, [_POINTER, _POINTER]),
    "mtmd_helper_eval_chunks": (
        _INT,
        [_POINTER, _POINTER, _POINTER, _INT, _INT, _INT, ctypes.c_bool, ctypes.POINTER(_INT)],
    ),
}


_TEXT_CHUNK = 0

Samples = npt.NDArray[np.float32]  # at 16 kHz

_QUIET = _LogCallback(lambda _level, _text, _user: None)


class Mtmd:
    """One model with image or audio input, and one conversation."""

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

    def read(self, text: str, medium: bytes | Samples | None) -> int:
        """Process a text, with a PNG file or a sound in place of `marker`; return the next token.

        Raises:
            RuntimeError: if the library refuses.
        """
        chunks = self._chunks(text, medium)
        end = _INT()
        status = self._call["mtmd_helper_eval_chunks"](
            self._tower, self._context, chunks, self._past, 0, _BATCH, True, ctypes.byref(end)  # noqa: FBT003
        )  # fmt: skip
        self._call["mtmd_input_chunks_free"](chunks)
        if status:
            raise RuntimeError(f"llama.cpp gave {status}")
        self._past = end.value
        return self._best()

    def encode(self, medium: bytes | Samples) -> None:
        """Compute the embeddings of a PNG file or a sound alone.

        Raises:
            RuntimeError: if the library refuses.
        """
        chunks = self._chunks(self.marker, medium)
        for index in range(self._call["mtmd_input_chunks_size"](chunks)):
            chunk = self._call["mtmd_input_chunks_get"](chunks, index)
            is_text = self._call["mtmd_input_chunk_get_type"](chunk) == _TEXT_CHUNK
            status = 0 if is_text else self._call["mtmd_encode_chunk"](self._tower, chunk)
            if status:
                raise RuntimeError(f"llama.cpp gave {status}")
        self._call["mtmd_input_chunks_free"](chunks)

    def decode(self, token: int) -> int:
        """Process one token; return the next.

        Raises:
            RuntimeError: if the library refuses.
        """
        batch = self._call["llama_batch_get_one"](ctypes.byref(_INT(token)), 1)
        status = self._call["llama_decode"](self._context, batch)
        if status:
            raise RuntimeError(f"llama.cpp gave {status}")
        self._past += 1
        return self._best()

    def _best(self) -> int:
        logits = self._call["llama_get_logits_ith"](self._context, -1)
        return int(np.ctypeslib.as_array(logits, (self._tokens,)).argmax())

    def _chunks(self, text: str, medium: bytes | Samples | None) -> int:
        """Return the parts of a text; the caller frees them."""
        maps = [] if medium is None else [self._bitmap(medium)]
        chunks = self._call["mtmd_input_chunks_init"]()
        given = _Text(text.encode(), len(text.encode()), self._past == 0, parse_special=True)
        array = (_POINTER * max(1, len(maps)))(*maps)
        status = self._call["mtmd_tokenize"](
            self._tower, chunks, ctypes.byref(given), array, len(maps)
        )
        for each in maps:
            self._call["mtmd_bitmap_free"](each)
        if status:
            raise RuntimeError(f"llama.cpp gave {status}")
        return int(chunks)

    def _bitmap(self, medium: bytes | Samples) -> int:
        if not isinstance(medium, bytes):
            return int(self._call["mtmd_bitmap_init_from_audio"](len(medium), medium.tobytes()))
        with Image.open(io.BytesIO(medium)) as image:
            pixels = image.convert("RGB")
        width, height = pixels.size
        return int(self._call["mtmd_bitmap_init"](width, height, pixels.tobytes()))
