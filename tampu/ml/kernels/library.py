"""Loads the compiled kernels, checks them against ggml's bindings and chooses a level.

A level is all kernels for one set of CPU features: `avx512`, `avx2` or `portable`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from tampu.errors import LibraryError, RequestError
from tampu.ml.library import gg
from tampu.ml.machine import second_cache_bytes
from tampu.ml.types import GGMLType
from tampu.settings.choices import KERNEL_GROUPS, KERNEL_LEVELS

log = logging.getLogger("tampu.ml")

LAYOUT_VERSION = 4  # of packed weights and of measurements that are kept in files
STREAMS = 16  # strips that a thread can read at once, at most
OWN_PARAMS = 6  # the first of ggml's parameters of an operation that is ours
_MIN_CHUNK, _MAX_CHUNK = 64 * 2**10, 2**20
# Levels that were never measured against ggml: used only if they are asked for.
_UNPROVEN = ("portable", "amx_emulated", "neon", "i8mm")
_WITH_TILES = ("amx", "amx_emulated")
LIBRARY = "libtampu_kernels.so"
_SOURCES = Path(__file__).with_name("source")
_OPERATIONS = (
    "quantize",
    "interleave",
    "product",
    "group",
    "product_each",
    "weighted_total",
    "attention",
    "delta_rule",
    "convolution",
    "selective_scan",
)
_FIELDS = ("ne", "nb", "op_params", "src", "data")

_int, _i64, _text, _address = ctypes.c_int, ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p
_SIGNATURES: dict[str, tuple[Any, ...]] = {  # the result, then the arguments
    "tampu_tensor_offset": (_i64, _int),
    "tampu_packed_bytes": (_i64, _int, _i64, _i64, _i64),
    "tampu_plan_bytes": (_i64, _i64, _i64),
    "tampu_amx_problem": (_text,),
    "tampu_level_count": (_int,),
    "tampu_level_name": (_text, _int),
    "tampu_level_operation": (_address, _int, _text),
    "tampu_level_layout": (_int, _int, _int, _i64),
    "tampu_level_activation_bytes": (_i64, _int, _int, _i64, _i64, _i64),
    "tampu_level_peak": (ctypes.c_double, _int, _text, _i64),
    "tampu_level_read": (None, _int, _address, _i64, _int, _int, _int),
    "tampu_level_pack": (None, _int, _int, _address, _address, _i64, _i64, _i64, _i64),
}

FLOATING = frozenset({GGMLType.F16, GGMLType.BF16})
"""Weights whose activations are not those of the quantized ones: each layout has its own."""


class Hint(IntEnum):
    """The prefetch instruction, as the library numbers them.

    On x86 CPUs `T0` fills all caches, `T1` the second and beyond, `T2` as `T1` or the third alone,
    `NTA` the first only. ARM's are similar.
    """

    NONE = 0
    NTA = 1
    T2 = 2
    T1 = 3
    T0 = 4


@dataclass(frozen=True, slots=True)
class Fetch:
    """How weights for few tokens are prefetched.

    Attributes:
        hint: the instruction.
        ahead: how many bytes before their use.
        streams: strips of weights that each thread reads at once.
    """

    hint: Hint
    ahead: int
    streams: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChoice:
    """Which operations use the library, where it can be used.

    Attributes:
        products: whether matrix products do.
        experts: whether products with the matrices of experts do.
        attention: whether attention over the cache does.
        recurrence: whether recurrent layers do.
        deterministic: whether a row's result must be the same whatever the other rows are: then
            no level with tiles is used, which multiply few rows in another way than many.
        level: which level to use; None: the fastest that the CPU has.
        or_fastest: whether to take the fastest where the CPU does not support that level.
    """

    products: bool = True
    experts: bool = True
    attention: bool = True
    recurrence: bool = True
    deterministic: bool = False
    level: str | None = None
    or_fastest: bool = False

    @classmethod
    def from_word(cls, word: str) -> KernelChoice:
        """Return the choice for `on`, `off`, the name of an operation (only that one) or a level.

        Raises:
            RequestError: for any other word.
        """
        if word in KERNEL_LEVELS:
            return cls(level=word, or_fastest=True)
        if word not in KERNEL_GROUPS:
            known = ", ".join((*KERNEL_GROUPS, *KERNEL_LEVELS))
            raise RequestError(f"kernels are one of {known}, not {word!r}")
        return cls(
            products=word in ("on", "products"),
            experts=word in ("on", "experts"),
            attention=word in ("on", "attention"),
            recurrence=word in ("on", "recurrence"),
        )


DEFAULT_FETCH = Fetch(Hint.T0, 1024, 8)
"""The default, without a measurement."""


class Kernels:
    """One level of the library, with the operations that were chosen.

    Attributes:
        choice: which operations to use.
        level: its name.
        fetch: how weights for few tokens are read from memory; see `tuning`.
        chunk_bytes: of weights that stay in the second-level cache while all panels of a prompt
            are multiplied by them.
    """

    def __init__(self, library: ctypes.CDLL, choice: KernelChoice, number: int) -> None:
        """Look up the operations of the level of this number."""
        self.choice = choice
        self.level: str = library.tampu_level_name(number).decode()
        self.fetch = DEFAULT_FETCH
        self.chunk_bytes = min(max(second_cache_bytes() // 4, _MIN_CHUNK), _MAX_CHUNK)
        self._library = library
        self._number = number
        self._operations: dict[str, Any] = {}  # typed by the bindings as ctypes functions
        for name in _OPERATIONS:
            if address := library.tampu_level_operation(number, name.encode()):
                self._operations[name] = gg.ggml_custom_op_t(address)

    def operation(self, name: str) -> Any:
        """Return the function of an operation, for `ggml_custom_4d`."""
        return self._operations[name]

    def layout(self, type: GGMLType, inputs: int) -> int:
        """Return the number of the layout that weights of a type have, in rows of this length."""
        return int(self._library.tampu_level_layout(self._number, int(type), inputs))

    def packed_bytes(self, type: GGMLType, rows: int, inputs: int, experts: int = 1) -> int:
        """Return the size of a packed weight; 0 if the type or the shape has no packed layout."""
        layout = self.layout(type, inputs)
        return int(self._library.tampu_packed_bytes(layout, experts, rows, inputs))

    def activation_bytes(self, layout: int, tokens: int, inputs: int, experts: int = 1) -> int:
        """Return the size of activations packed for weights of this layout."""
        given = (self._number, layout, experts, tokens, inputs)
        return int(self._library.tampu_level_activation_bytes(*given))

    def plan_bytes(self, experts: int, rows: int) -> int:
        """Return the size of the table that maps rows of packed activations to experts."""
        return int(self._library.tampu_plan_bytes(experts, rows))

    def peak(self, kind: str, rounds: int) -> float:
        """Compute products of a kind in registers, on this thread; return the number of operations.

        Sums count; it is 0 if the level has no such products.
        """
        return float(self._library.tampu_level_peak(self._number, kind.encode(), rounds))

    def read(self, address: int, size: int, fetch: Fetch) -> None:
        """Read memory, in as many equal parts at once as there are streams, on this thread."""
        given = (fetch.streams, int(fetch.hint), fetch.ahead)
        self._library.tampu_level_read(self._number, address, size, *given)

    def pack(
        self, type: GGMLType, source: int, packed: int, shape: tuple[int, int], strips: range
    ) -> None:
        """Pack some strips (of sixteen rows) of a matrix (rows, inputs), without Python's lock.

        `source` and `packed` are addresses of the whole matrix.
        """
        layout = self.layout(type, shape[1])
        numbers = (*shape, strips.start, len(strips))
        self._library.tampu_level_pack(self._number, layout, source, packed, *numbers)


def find_kernels(choice: KernelChoice, path: Path | None = None) -> Kernels | None:
    """Return the fastest usable level, or None if there is none or none is wanted.

    Raises:
        RequestError: if the level asked for is not usable here.
        LibraryError: if the library was compiled from other sources than those that are here.
    """
    if not (choice.products or choice.experts or choice.attention or choice.recurrence):
        return None
    library = _load(path or Path(__file__).with_name(LIBRARY))
    if library is None:
        return None
    every = [library.tampu_level_name(i).decode() for i in range(library.tampu_level_count())]
    names = every
    level = choice.level
    if choice.deterministic:
        names = [name for name in names if name not in _WITH_TILES]
    if level is not None and level not in names:
        problem = f"no kernels for {level} here; there are: {', '.join(names)}"
        if not choice.or_fastest:
            raise RequestError(problem)
        log.warning("kernels: %s", problem)
        level = None
    if level is None and names[0] in _UNPROVEN:
        log.info("kernels: not used, ggml may be faster on this CPU")
        return None
    kernels = Kernels(library, choice, every.index(level or names[0]))
    log.info("kernels: %s", kernels.level)
    if missing := library.tampu_amx_problem():
        log.info("kernels: AMX is left out: %s", missing.decode())
    return kernels


@functools.cache
def _load(path: Path) -> ctypes.CDLL | None:
    """Load the library once; None, and a log line, if it cannot be used."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        log.warning("kernels: not used, ggml computes alone: %s", error)
        return None
    _check_sources(library, path)
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, name)  # not library[name], which is another object each time
        function.restype, function.argtypes = result, arguments
    if (problem := _mismatch(library)) is not None:
        log.warning("kernels: not used, ggml computes alone: %s", problem)
        return None
    return library


def _check_sources(library: ctypes.CDLL, path: Path) -> None:
    """Check that a library was compiled from the C sources that are here.

    After an update its operations may have other parameters than Python gives them. Where there are
    no sources, in a wheel, the library was compiled with the package.

    Raises:
        LibraryError: if it was not.
    """
    if not _SOURCES.is_dir():
        return
    found = hashlib.sha256()  # as tools/setup/compile_kernels.py computes it
    for source in sorted(_SOURCES.glob("*.[ch]")):
        found.update(f"{source.name} {source.stat().st_size}\n".encode() + source.read_bytes())
    try:
        compiled = ctypes.c_char_p.in_dll(library, "tampu_sources").value
    except ValueError:  # compiled before it had them
        compiled = None
    if compiled != found.hexdigest().encode():
        raise LibraryError(
            f"{path} was not compiled from the C sources in {_SOURCES}: "
            f"run make tampu/ml/kernels/{LIBRARY} in the clone"
        )


def _mismatch(library: ctypes.CDLL) -> str | None:
    """Return why the library cannot be used with this ggml; None if it can."""
    expected = [getattr(gg.ggml_tensor, name).offset for name in _FIELDS]
    expected.append(ctypes.sizeof(gg.ggml_tensor))
    if [library.tampu_tensor_offset(i) for i in range(len(expected))] != expected:
        return "ggml's tensors have another layout"
    return None
