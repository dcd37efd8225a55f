"""GGUF files made byte by byte: a small writer that can write nonsense, and a table of such files.

Each case is the bytes of a file, the field that the refusal must name, and a part of its reason.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

UINT8, INT32, UINT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 0, 5, 4, 6, 7, 8, 9, 10
F32, Q4_0, I8 = 0, 2, 24
MINUS_ONE = 2**64 - 1


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw)) + raw


def header(tensors: int, keys: int, *, magic: bytes = b"GGUF", version: int = 3) -> bytes:
    return magic + u32(version) + u64(tensors) + u64(keys)


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return string(name) + u32(kind) + value


def array(name: str, kind: int, count: int, items: bytes = b"") -> bytes:
    return key(name, ARRAY, u32(kind) + u64(count) + items)


def strings(name: str, values: list[str | bytes]) -> bytes:
    return array(name, STRING, len(values), b"".join(map(string, values)))


def tensor(
    name: str | bytes, shape: list[int], kind: int = F32, offset: int = 0, count: int | None = None
) -> bytes:
    """`shape` in the file's order, fastest dimension first; `count` lies about its length."""
    dimensions = u32(len(shape) if count is None else count) + b"".join(map(u64, shape))
    return string(name) + dimensions + u32(kind) + u64(offset)


def pad(data: bytes, alignment: int = 32) -> bytes:
    return data + b"\0" * (-len(data) % alignment)


def one_key(record: bytes) -> bytes:
    return header(0, 1) + record


def one_tensor(record: bytes, data: int = 128) -> bytes:
    return pad(header(1, 0) + record) + b"\0" * data


def two_tensors(first: bytes, second: bytes, data: int = 256) -> bytes:
    return pad(header(2, 0) + first + second) + b"\0" * data


def good_file(*, version: int = 3, alignment: int = 32) -> bytes:
    """Return a small file with every type of value and tensors out of order, with a gap."""
    records = [
        key("general.architecture", STRING, string("llama")),
        key("general.alignment", UINT32, u32(alignment)),
        key("llama.block_count", UINT32, u32(2)),
        key("llama.rope.freq_base", FLOAT32, struct.pack("<f", 500.0)),
        key("llama.causal", BOOL, b"\1"),
        key("llama.negative", INT32, struct.pack("<i", -7)),
        key("llama.wide", UINT64, u64(2**63)),
        strings("tokenizer.ggml.tokens", ["a", "", "é" * 300, b"\xff\xfe", b"x\0y", "end"]),
        array("tokenizer.ggml.scores", FLOAT32, 3, struct.pack("<3f", 0.5, -1, 2)),
        array("tokenizer.ggml.token_type", INT32, 3, struct.pack("<3i", 1, 3, -6)),
        array("llama.flags", BOOL, 2, b"\1\0"),
        array("llama.empty", INT32, 0),
    ]
    tensors = [
        tensor("output", [32, 2], F32, 2 * alignment),
        tensor("quantized", [64, 3], Q4_0, 0 if alignment >= 128 else 512),
    ]
    if alignment >= 128:
        tensors[1] = tensor("quantized", [64, 3], Q4_0, 4 * alignment)
    head = header(len(tensors), len(records), version=version) + b"".join(records + tensors)
    return pad(head, alignment) + b"\0" * 8 * max(alignment, 128)


@dataclass(frozen=True)
class Hostile:
    data: bytes
    field: str
    reason: str


W = "tensor 'w'"
K = "key 'k'"
TOO_MANY = "more than the limit"
NO_ROOM = "cannot fit"
PAST_END = "past the end of the file"
GOOD = key("k", UINT32, u32(1))

HEADER: dict[str, Hostile] = {
    "an empty file": Hostile(b"", "magic", "not a GGUF file"),
    "three bytes": Hostile(b"GGU", "magic", "not a GGUF file"),
    "a magic alone": Hostile(b"GGUF", "version", "0 left"),
    "23 bytes": Hostile(header(0, 0)[:23], "key count", "7 left"),
    "another magic": Hostile(header(0, 0, magic=b"GGML"), "magic", "not a GGUF file"),
    "version 0": Hostile(header(0, 0, version=0), "version", "0 is not known"),
    "version 1": Hostile(header(0, 0, version=1), "version", "1 is not known"),
    "version 4": Hostile(header(0, 0, version=4), "version", "4 is not known"),
    "version 2^31": Hostile(header(0, 0, version=2**31), "version", "big-endian"),
    "big-endian": Hostile(header(0, 0, version=3 << 24), "version", "big-endian"),
    "-1 tensors": Hostile(header(MINUS_ONE, 0), "tensor count", TOO_MANY),
    "2^31 tensors": Hostile(header(2**31, 0), "tensor count", TOO_MANY),
    "2^40 tensors": Hostile(header(2**40, 0), "tensor count", TOO_MANY),
    "2^63 tensors": Hostile(header(2**63, 0), "tensor count", TOO_MANY),
    "65,537 tensors": Hostile(header(65_537, 0), "tensor count", TOO_MANY),
    "tensors without room": Hostile(header(2, 0) + b"\0" * 65, "tensor count", NO_ROOM),
    "-1 keys": Hostile(header(0, MINUS_ONE), "key count", TOO_MANY),
    "2^31 keys": Hostile(header(0, 2**31), "key count", TOO_MANY),
    "2^40 keys": Hostile(header(0, 2**40), "key count", TOO_MANY),
    "2^63 keys": Hostile(header(0, 2**63), "key count", TOO_MANY),
    "65,537 keys": Hostile(header(0, 65_537), "key count", TOO_MANY),
    "keys without room": Hostile(header(0, 2) + b"\0" * 27, "key count", NO_ROOM),
    "a million keys": Hostile(header(0, 10**6) + GOOD * 10**6, "key count", TOO_MANY),
} | {
    f"{size} bytes of a head": Hostile(header(0, 0)[:size], "", "")
    for size in (1, 2, 5, 7, 8, 12, 15, 16, 20, 22)
}

KEYS: dict[str, Hostile] = {
    "an empty key": Hostile(one_key(key("", UINT32, u32(1))), "key 0", "is empty"),
    "a key of 65,536 bytes": Hostile(
        one_key(key("a" * 65_536, UINT32, u32(1))), "key 0 length", TOO_MANY
    ),
    "a key of 2^63 bytes": Hostile(header(0, 1) + u64(2**63) + b"a" * 16, "key 0 length", TOO_MANY),
    "a key of 1 GiB": Hostile(header(0, 1) + u64(2**30 + 1) + b"a" * 16, "key 0 length", TOO_MANY),
    "a key past the end": Hostile(header(0, 1) + u64(1000) + b"abcdefgh", "key 0 length", PAST_END),
    "a key that is not UTF-8": Hostile(
        one_key(key(b"\xff\xfe", UINT32, u32(1))), "key 0", "not valid UTF-8"
    ),
    "a key with a NUL": Hostile(one_key(key("a\0b", UINT32, u32(1))), "key 0", "NUL"),
    "the same key twice": Hostile(header(0, 2) + GOOD + GOOD, K, "twice"),
    "a second key cut off": Hostile(header(0, 2) + GOOD + u64(20) + b"\0" * 9, "key 1", PAST_END),
}

VALUES: dict[str, Hostile] = {
    "value type 13": Hostile(one_key(key("k", 13, u32(1))), f"{K} type", "13 is not known"),
    "value type 99": Hostile(one_key(key("k", 99, u32(1))), f"{K} type", "99 is not known"),
    "value type -1": Hostile(
        one_key(key("k", 2**32 - 1, u32(1))), f"{K} type", "4294967295 is not known"
    ),
    "a boolean of 2": Hostile(one_key(key("kk", BOOL, b"\2")), "key 'kk' value", "neither true"),
    "a number past the end": Hostile(
        one_key(key("k", UINT64, b"1234")), f"{K} value", "needs 8 bytes"
    ),
    "a string past the end": Hostile(
        one_key(key("k", STRING, u64(100) + b"a")), f"{K} value", PAST_END
    ),
    "a string of 2^63 bytes": Hostile(
        one_key(key("k", STRING, u64(2**63))), f"{K} value", TOO_MANY
    ),
    "a string over 16 MiB": Hostile(
        one_key(key("k", STRING, u64((16 << 20) + 1))), f"{K} value", TOO_MANY
    ),
    "a general text that is not UTF-8": Hostile(
        one_key(key("general.name", STRING, string(b"\xff"))),
        "key 'general.name' value",
        "not valid UTF-8",
    ),
    "a general array that is not UTF-8": Hostile(
        one_key(strings("general.tags", ["fine", b"\xff"])),
        "key 'general.tags' item 1",
        "not valid UTF-8",
    ),
}

ARRAYS: dict[str, Hostile] = {
    "items of type 99": Hostile(
        one_key(array("k", 99, 1, u32(7))), f"{K} item type", "99 is not known"
    ),
    "an array of arrays": Hostile(
        one_key(array("k", ARRAY, 1, u32(4) + u64(1) + u32(7))), f"{K} item type", "do not nest"
    ),
    "arrays 10,000 deep": Hostile(
        one_key(array("k", ARRAY, 1, (u32(ARRAY) + u64(1)) * 10_000)), f"{K} item type", "nest"
    ),
    "2^62 bytes": Hostile(one_key(array("k", UINT8, 2**62)), f"{K} item count", TOO_MANY),
    "2^61 integers of 8 bytes": Hostile(
        one_key(array("k", UINT64, 2**61)), f"{K} item count", TOO_MANY
    ),
    "a billion integers": Hostile(one_key(array("k", UINT64, 10**9)), f"{K} item count", TOO_MANY),
    "a billion strings": Hostile(one_key(array("k", STRING, 10**9)), f"{K} item count", TOO_MANY),
    "64 Mi integers without room": Hostile(
        one_key(array("k", UINT64, 64 << 20)), f"{K} item count", NO_ROOM
    ),
    "64 Mi strings without room": Hostile(
        one_key(array("k", STRING, 64 << 20)), f"{K} item count", NO_ROOM
    ),
    "strings cut off": Hostile(
        one_key(array("k", STRING, 2, string("a" * 9) + b"\1")), K, "needs 8 bytes"
    ),
    "a last string past the end": Hostile(
        one_key(array("k", STRING, 2, string("a") + u64(200) + b"a")), K, "needs"
    ),
    "a long last string past the end": Hostile(
        one_key(array("k", STRING, 2, string("a") + u64(300) + b"a")), K, PAST_END
    ),
    "a string over 16 MiB in an array": Hostile(
        one_key(array("k", STRING, 2, string("a") + u64(2**40))), K, TOO_MANY
    ),
    "a boolean of 3 in an array": Hostile(
        one_key(array("k", BOOL, 2, b"\1\3")), f"{K} items", "neither 1 nor 0"
    ),
}

ALIGNMENT: dict[str, Hostile] = {
    f"an alignment of {value}": Hostile(
        one_key(key("general.alignment", UINT32, u32(value))),
        "key 'general.alignment'",
        "not a power of two",
    )
    for value in (0, 3, 4, 7, 8192, 2**31, 2**32 - 1)
} | {
    f"an alignment that is {what}": Hostile(
        one_key(record), "key 'general.alignment'", "must be a uint32"
    )
    for what, record in {
        "a text": key("general.alignment", STRING, string("32")),
        "signed": key("general.alignment", INT32, u32(32)),
        "a boolean": key("general.alignment", BOOL, b"\1"),
        "an array": array("general.alignment", UINT32, 1, u32(32)),
        "an empty array": array("general.alignment", UINT32, 0),
    }.items()
}

TENSORS: dict[str, Hostile] = {
    "an empty name": Hostile(one_tensor(tensor("", [32])), "tensor 0 name", "is empty"),
    "a name of 64 bytes": Hostile(one_tensor(tensor("w" * 64, [32])), "tensor 0 name", TOO_MANY),
    "a name of 1 MB": Hostile(one_tensor(tensor("w" * 10**6, [32])), "tensor 0 name", TOO_MANY),
    "a name with a NUL": Hostile(one_tensor(tensor("w\0", [32])), "tensor 0 name", "NUL"),
    "a name that is not UTF-8": Hostile(
        one_tensor(tensor(b"\xff", [32])), "tensor 0 name", "not valid UTF-8"
    ),
    "the same name twice": Hostile(
        two_tensors(tensor("w", [32]), tensor("w", [32], offset=128)), W, "twice"
    ),
    "no dimensions": Hostile(one_tensor(tensor("w", [])), f"{W} dimensions", "0 is not from 1"),
    "5 dimensions": Hostile(one_tensor(tensor("w", [2] * 5)), f"{W} dimensions", "5 is not from 1"),
    "2^32-1 dimensions": Hostile(
        one_tensor(tensor("w", [2] * 4, count=2**32 - 1)), f"{W} dimensions", "is not from 1"
    ),
    "a first dimension of zero": Hostile(
        one_tensor(tensor("w", [0])), f"{W} shape", "dimension of zero"
    ),
    "a later dimension of zero": Hostile(
        one_tensor(tensor("w", [32, 0])), f"{W} shape", "dimension of zero"
    ),
    "a dimension of -1": Hostile(one_tensor(tensor("w", [MINUS_ONE])), f"{W} offset", PAST_END),
    "elements past 64 bits": Hostile(one_tensor(tensor("w", [2**62, 4])), f"{W} offset", PAST_END),
    "elements that wrap to 0": Hostile(
        one_tensor(tensor("w", [2**32, 2**32])), f"{W} offset", PAST_END
    ),
    "bytes past 64 bits": Hostile(one_tensor(tensor("w", [2**62])), f"{W} offset", PAST_END),
    "bytes that wrap when padded": Hostile(
        one_tensor(tensor("w", [2**62 - 1])), f"{W} offset", PAST_END
    ),
    "bytes that wrap, I8": Hostile(
        one_tensor(tensor("w", [2**63 - 1], I8)), f"{W} offset", PAST_END
    ),
    "a row of 31 in Q4_0": Hostile(
        one_tensor(tensor("w", [31], Q4_0)), f"{W} shape", "Q4_0's block of 32"
    ),
    "an unaligned offset": Hostile(
        one_tensor(tensor("w", [32], offset=7), 256), f"{W} offset", "multiple of 32"
    ),
    "an offset of 2^63": Hostile(
        one_tensor(tensor("w", [32], offset=2**63)), f"{W} offset", PAST_END
    ),
    "data cut by one byte": Hostile(one_tensor(tensor("w", [32]), 127), f"{W} offset", PAST_END),
    "data cut in half": Hostile(one_tensor(tensor("w", [32]), 64), f"{W} offset", PAST_END),
    "no data": Hostile(one_tensor(tensor("w", [32]), 0), f"{W} offset", PAST_END),
    "no data and no padding": Hostile(
        header(1, 0) + tensor("w", [32]), f"{W} offset", "has 0 bytes"
    ),
    "1 TB that is not there": Hostile(one_tensor(tensor("w", [2**38]), 0), f"{W} offset", PAST_END),
    "the same place twice": Hostile(
        two_tensors(tensor("v", [32]), tensor("w", [32])), f"{W} offset", "overlaps tensor 'v'"
    ),
    "an overlap by one block": Hostile(
        two_tensors(tensor("v", [32], offset=32), tensor("w", [16])),
        "tensor 'v' offset",
        "overlaps tensor 'w'",
    ),
    "a second tensor cut off": Hostile(
        header(2, 0) + tensor("v", [2, 2, 2, 2]) + string("w") + u32(1) + b"\0" * 4, W, "needs"
    ),
} | {
    f"tensor type {number}": Hostile(
        one_tensor(tensor("w", [256], number)), f"{W} type", f"{number} is not known"
    )
    for number in (4, 5, 31, 32, 33, 36, 37, 38, 42, 43, 9999, 2**32 - 1)
}

CASES = HEADER | KEYS | VALUES | ARRAYS | ALIGNMENT | TENSORS
