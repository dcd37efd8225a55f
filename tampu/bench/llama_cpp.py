"""llama.cpp as the peer of benchmarks and comparisons, driven in a child process.

The prebuilt library of the `xllamacpp` wheel (`pip install tampu[bench]`), or any other libllama,
is driven through its C functions exactly as llama-bench drives them: `llama_decode` on token ids,
then `llama_synchronize`; no server, no sampling, no text. Only that is timed, inside the child,
so neither the pipe nor the start counts. A physical batch is 512 tokens, all other parameters are
llama.cpp's own defaults (flash attention automatic, f16 cache, memory map, repacked weights), and
only the last token of a batch asks for logits. Logits of more positions, which comparisons need, go
through a temporary file.

The binding is made by hand with ctypes because no package measures the same. xllamacpp exposes only
llama.cpp's server, whose timings include sampling and which chooses the tokens to decode itself; it
ships no llama-bench, and cannot load another libllama (`--peer-library`). llama-cpp-python compiles
a llama.cpp of its own, and its struct layouts fit only that one.

It is a separate process so that the two engines share neither OpenMP's threads nor memory. Between
two measurements the child blocks reading its pipe.

Run as a program (`python -m tampu.bench.llama_cpp LIBRARY`), this module is the child: one JSON
object per line in, one out.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from tampu.errors import ComputeError, RequestError, RunnerDiedError, TampuError

PHYSICAL_BATCH = 512
_MAX_LOG_LINES = 20


def find_library(given: Path | None = None) -> Path:
    """Return the path of llama.cpp's library: the given one, or that of the xllamacpp wheel.

    Raises:
        RequestError: if there is none.
    """
    if given is not None:
        if not given.is_file():
            raise RequestError(f"no library at {str(given)!r}")
        return given
    found = importlib.util.find_spec("xllamacpp")
    for folder in (found and found.submodule_search_locations) or ():
        for library in sorted(Path(folder).glob("xllamacpp*.so")):
            return library
    raise RequestError("llama.cpp is not installed: pip install 'tampu[bench]'")


def missing_sets(own: Collection[str], system: str) -> list[str]:
    """Return the instruction sets that a build of llama.cpp lacks, by what it prints of itself."""
    words = {word.strip(":|=").upper() for word in system.split()}
    return sorted(set(own) - words)


class LlamaCpp:
    """llama.cpp with one model, in a child process: a `tampu.bench.bench.Subject`."""

    def __init__(
        self,
        model: Path,
        *,
        threads: int,
        context: int,
        library: Path | None = None,
        changes: Sequence[str] = (),
    ) -> None:
        """Start the child and load the model in it.

        The default library is the wheel's. `changes` are deviations from llama.cpp's defaults:
        `repack off`, `flash off`.

        Raises:
            RequestError: if llama.cpp isn't installed.
            ComputeError: if it cannot load the model.
            RunnerDiedError: if the child ended.
        """
        command = [sys.executable, "-m", "tampu.bench.llama_cpp", str(find_library(library))]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        try:
            answer = self._ask(
                do="open",
                model=str(model),
                threads=threads,
                context=context,
                changes=list(changes),
            )
        except TampuError:
            self.close()
            raise
        self.name = f"llama.cpp {answer['version']}"
        self.system = str(answer["system"])
        self.vocabulary = int(answer["vocabulary"])
        self.load_seconds = float(answer["seconds"])

    def rewind(self, depth: Sequence[int]) -> None:
        """Make these tokens the history, with nothing after them."""
        self._ask(do="rewind", tokens=list(depth))

    def prefill(self, tokens: Sequence[int]) -> float:
        """Compute tokens in batches; return the seconds that it took."""
        return float(self._ask(do="prefill", tokens=list(tokens))["seconds"])

    def decode(self, tokens: Sequence[int]) -> float:
        """Compute tokens one after the other; return the seconds that it took."""
        return float(self._ask(do="decode", tokens=list(tokens))["seconds"])

    def logits(self, tokens: Sequence[int], last: int) -> npt.NDArray[np.float32]:
        """Return the logits after each of the last tokens, float32, (last, vocabulary).

        The tokens are the whole history; they must fit the context.
        """
        with TemporaryDirectory(prefix="tampu-") as folder:
            path = Path(folder) / "logits"
            self._ask(do="logits", tokens=list(tokens), last=last, path=str(path))
            return np.fromfile(path, np.float32).reshape(last, self.vocabulary)

    def steer(self, directions: npt.NDArray[np.float32], first: int, last: int) -> None:
        """Add a control vector in layers from `first` to `last`, in place of the one before.

        `directions` are F32, (layers, features), from layer 1 on. What was computed stays.
        """
        numbers, features = directions.reshape(-1).tolist(), directions.shape[1]
        self._ask(do="steer", numbers=numbers, features=features, first=first, last=last)

    def close(self) -> None:
        """End the child; it may be called twice."""
        self._child.communicate()

    def _ask(self, **request: object) -> Mapping[str, Any]:
        pipe_in, pipe_out = self._child.stdin, self._child.stdout
        if pipe_in is None or pipe_out is None or pipe_in.closed:
            raise RunnerDiedError("llama.cpp's process is closed")
        try:
            pipe_in.write(json.dumps(request) + "\n")
            line = pipe_out.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._child.wait()
            raise RunnerDiedError(f"llama.cpp's process ended with code {code}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ComputeError(f"llama.cpp: {answer['error']}")
        return answer


# The child


class _Struct(ctypes.Structure):
    """A struct of llama.cpp that is passed by value; large enough for any version's.

    Only the first three words of the context's parameters are used (n_ctx, n_batch and n_ubatch);
    the context is then checked for the values that were set.
    """

    _fields_ = [("words", ctypes.c_uint32 * 256)]


_LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_Tokens = ctypes.POINTER(ctypes.c_int32)
_POINTER = ctypes.c_void_p
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "llama_backend_init": (None, []),
    "llama_version": (ctypes.c_char_p, []),
    "llama_print_system_info": (ctypes.c_char_p, []),
    "llama_log_set": (None, [_LogCallback, _POINTER]),
    "llama_model_default_params": (_Struct, []),
    "llama_model_load_from_file": (_POINTER, [ctypes.c_char_p, _Struct]),
    "llama_model_get_vocab": (_POINTER, [_POINTER]),
    "llama_vocab_n_tokens": (ctypes.c_int32, [_POINTER]),
    "llama_context_default_params": (_Struct, []),
    "llama_init_from_model": (_POINTER, [_POINTER, _Struct]),
    "llama_set_n_threads": (None, [_POINTER, ctypes.c_int32, ctypes.c_int32]),
    "llama_n_ctx": (ctypes.c_uint32, [_POINTER]),
    "llama_n_batch": (ctypes.c_uint32, [_POINTER]),
    "llama_n_ubatch": (ctypes.c_uint32, [_POINTER]),
    "llama_get_memory": (_POINTER, [_POINTER]),
    "llama_memory_seq_rm": (
        ctypes.c_bool,
        [_POINTER, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32],
    ),
    "llama_batch_get_one": (_Struct, [_Tokens, ctypes.c_int32]),
    "llama_decode": (ctypes.c_int32, [_POINTER, _Struct]),
    "llama_synchronize": (None, [_POINTER]),
    "llama_set_adapter_cvec": (
        ctypes.c_int32,
        [_POINTER, _POINTER, ctypes.c_size_t, *[ctypes.c_int32] * 3],
    ),
    "llama_get_logits_ith": (ctypes.POINTER(ctypes.c_float), [_POINTER, ctypes.c_int32]),
}


# Offsets of two settings in the llama.cpp of ggml 0.25.3. The default values there are checked
# first, since other versions have them at other offsets.
_REPACK = 74  # byte of the model's parameters: vocab_only, check_tensors, use_extra_bufts
_FLASH = 13  # word of the context's: the last of four that are -1
# Byte of a batch: a count, and pointers to the tokens, embeddings, positions, numbers of sequences,
# sequences, and flags of the tokens that have an output.
_OUTPUT_FLAGS = 48


def _turn_repack_off(parameters: _Struct) -> None:
    flags = (ctypes.c_uint8 * 76).from_buffer(parameters)
    if list(flags[_REPACK - 2 : _REPACK + 1]) != [0, 0, 1]:
        raise RuntimeError(
            "unsupported libllama: the setting for repacked weights is at another offset"
        )
    flags[_REPACK] = 0


def _turn_flash_off(parameters: _Struct) -> None:
    if set(parameters.words[_FLASH - 3 : _FLASH + 1]) != {0xFFFFFFFF}:
        raise RuntimeError(
            "unsupported libllama: the setting for flash attention is at another offset"
        )
    parameters.words[_FLASH] = 0


class _Library:
    """A libllama with one loaded model."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        self._call: dict[str, Any] = {}
        for name, (result, arguments) in _FUNCTIONS.items():
            function = self._call[name] = library[name]
            function.restype, function.argtypes = result, arguments
        self._lines: list[str] = []
        self._callback = _LogCallback(self._log)
        self._call["llama_log_set"](self._callback, None)
        self._call["llama_backend_init"]()
        self._context = 0
        self._batch = 1
        self._vocabulary = 0
        self._held: list[int] = []

    def open(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Load a model with at least the requested context, and report the time."""
        began = time.perf_counter()
        changes = request["changes"]
        loading = self._call["llama_model_default_params"]()
        if "repack off" in changes:
            _turn_repack_off(loading)
        model = self._call["llama_model_load_from_file"](request["model"].encode(), loading)
        if not model:
            raise RuntimeError(f"cannot load the model: {self._last_lines()}")
        parameters = self._call["llama_context_default_params"]()
        parameters.words[0] = max(request["context"], PHYSICAL_BATCH)
        parameters.words[2] = PHYSICAL_BATCH
        if "flash off" in changes:
            _turn_flash_off(parameters)
        self._context = self._call["llama_init_from_model"](model, parameters)
        if not self._context:
            raise RuntimeError(f"cannot make a context: {self._last_lines()}")
        self._call["llama_set_n_threads"](self._context, request["threads"], request["threads"])
        self._batch = int(self._call["llama_n_batch"](self._context))
        physical = self._call["llama_n_ubatch"](self._context)
        if self._call["llama_n_ctx"](self._context) < request["context"]:
            raise RuntimeError("unsupported libllama: the context size is at another offset")
        if physical != PHYSICAL_BATCH:
            raise RuntimeError(
                f"unsupported libllama: it uses batches of {physical}, not {PHYSICAL_BATCH}"
            )
        vocabulary = self._call["llama_model_get_vocab"](model)
        self._vocabulary = int(self._call["llama_vocab_n_tokens"](vocabulary))
        return {
            "version": self._call["llama_version"]().decode(),
            "system": self._call["llama_print_system_info"]().decode().strip(" |"),
            "vocabulary": self._vocabulary,
            "seconds": time.perf_counter() - began,
        }

    def rewind(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Make the requested tokens the history; only what differs is computed."""
        wanted = request["tokens"]
        same = wanted[: len(self._held)] == self._held[: len(wanted)]
        kept = min(len(self._held), len(wanted)) if same else 0
        memory = self._call["llama_get_memory"](self._context)
        if not self._call["llama_memory_seq_rm"](memory, 0, kept, -1):
            kept = 0  # states of recurrent layers cannot be shortened
            self._call["llama_memory_seq_rm"](memory, 0, 0, -1)
        self._compute(wanted[kept:])
        self._held = wanted
        return {}

    def prefill(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Compute tokens in batches and report the time."""
        began = time.perf_counter()
        self._compute(request["tokens"])
        return {"seconds": time.perf_counter() - began}

    def decode(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Compute tokens one at a time and report the time."""
        began = time.perf_counter()
        for token in request["tokens"]:
            self._compute([token])
        return {"seconds": time.perf_counter() - began}

    def logits(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Compute tokens as the whole history, and write the logits after the last ones."""
        tokens, last = request["tokens"], request["last"]
        self.rewind({"tokens": []})
        self._held = tokens
        first = len(tokens) - last
        with Path(request["path"]).open("wb") as file:
            for start in range(0, len(tokens), self._batch):
                part = tokens[start : start + self._batch]
                self._decode(part, [start + at >= first for at in range(len(part))])
                for at in range(max(first - start, 0), len(part)):
                    row = self._call["llama_get_logits_ith"](self._context, at)
                    if not row:
                        raise RuntimeError("unsupported libllama: its batches have another layout")
                    file.write(ctypes.string_at(row, 4 * self._vocabulary))
        return {}

    def steer(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Set the control vector."""
        numbers = (ctypes.c_float * len(request["numbers"]))(*request["numbers"])
        layers = request["first"], request["last"]
        status = self._call["llama_set_adapter_cvec"](
            self._context, numbers, len(numbers), request["features"], *layers
        )
        if status != 0:
            raise RuntimeError(f"llama_set_adapter_cvec returned {status}: {self._last_lines()}")
        return {}

    def _compute(self, tokens: list[int]) -> None:
        for start in range(0, len(tokens), self._batch):
            self._decode(tokens[start : start + self._batch])

    def _decode(self, part: list[int], has_output: list[bool] | None = None) -> None:
        """Compute one batch; without flags only its last token has an output."""
        numbers = (ctypes.c_int32 * len(part))(*part)
        batch = self._call["llama_batch_get_one"](numbers, len(part))
        if has_output is not None:
            flags = (ctypes.c_int8 * len(part))(*has_output)  # llama_decode reads it
            place = _POINTER.from_buffer(batch, _OUTPUT_FLAGS)
            if place.value is not None:
                raise RuntimeError("unsupported libllama: its batches have another layout")
            place.value = ctypes.addressof(flags)
        status = self._call["llama_decode"](self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}: {self._last_lines()}")
        self._call["llama_synchronize"](self._context)

    def _log(self, _level: int, text: bytes, _user: object) -> None:
        self._lines = [*self._lines[1 - _MAX_LOG_LINES :], text.decode("utf-8", "replace").strip()]

    def _last_lines(self) -> str:
        return " / ".join(line for line in self._lines[-3:] if line)


def serve(path: str) -> None:
    """Serve the requests on standard input until it ends."""
    library = _Library(path)
    actions = {
        "open": library.open,
        "rewind": library.rewind,
        "prefill": library.prefill,
        "decode": library.decode,
        "logits": library.logits,
        "steer": library.steer,
    }
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = actions[request["do"]](request)
        except RuntimeError as error:
            answer = {"error": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
