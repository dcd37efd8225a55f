"""Long texts: tampu's tokenizer beside the `tokenizers` library: `python -m benchmarks.tokenizing`.

The vocabulary is a byte-level BPE of 32,000 tokens with Llama 3's words, which the library trains.
It and the texts come from the files of the installed packages: code, and their documentation. All
take turns, and CPU seconds count, so that other processes matter little. tampu is measured with
several sizes of its cache of words, each time with an empty cache.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
import time
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import median
from unittest.mock import patch

import numpy as np
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from tampu.ml.gguf import Metadata
from tampu.tokenizer import merging
from tampu.tokenizer.loading import load_tokenizer
from tampu.tokenizer.pretokenizers import find

PRE = "llama-bpe"
MB = 1_000_000
KINDS = {"code": (".py",), "prose": (".md", ".rst", ".txt")}


def texts(suffixes: Iterable[str], size: int) -> tuple[str, str]:
    """Return a text of a size in characters for measuring, and another of a quarter of it."""
    folder = Path(sysconfig.get_paths()["purelib"])
    files = [path for path in folder.rglob("*") if path.suffix in suffixes and path.is_file()]
    files.sort(key=lambda path: zlib.crc32(str(path.relative_to(folder)).encode()))
    parts: list[str] = []
    length = 0
    for path in files:
        if length >= 1.25 * size:
            break
        try:
            parts.append(path.read_text("utf-8")[: size // 40])
        except UnicodeDecodeError:
            continue
        length += len(parts[-1])
    whole = "".join(parts)
    return whole[: len(whole) * 4 // 5], whole[len(whole) * 4 // 5 :]


def trained(text: Iterable[str]) -> Tokenizer:
    """Return the library's tokenizer."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    splits = [pre_tokenizers.Split(Regex(stage), "isolated") for stage in find(PRE).stages]
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, alphabet])
    trainer = trainers.BpeTrainer(
        vocab_size=32_000,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    return tokenizer


def metadata(tokenizer: Tokenizer) -> Metadata:
    """Return what a GGUF file of the tokenizer would have."""
    ids = tokenizer.get_vocab()
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return Metadata(
        {
            "general.architecture": "llama",
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": PRE,
            "tokenizer.ggml.tokens": sorted(ids, key=lambda token: ids[token]),
            "tokenizer.ggml.token_type": np.ones(len(ids), np.int32),
            "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        }
    )


def cpu_s(encode: Callable[[str], list[int]], text: str) -> tuple[float, list[int]]:
    """Return the CPU seconds that a text takes, and its tokens."""
    began = time.process_time()
    found = encode(text)
    return time.process_time() - began, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mb", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--caches", default="16384,65536")
    arguments = parser.parse_args()
    caches = [int(size) for size in arguments.caches.split(",")]
    measured = {kind: texts(KINDS[kind], int(arguments.mb * MB)) for kind in KINDS}
    library = trained(other for _, other in measured.values())
    described = metadata(library)

    def by_library(text: str) -> list[int]:
        return library.encode(text, add_special_tokens=False).ids

    for kind, (text, _) in measured.items():
        seconds: dict[str, list[float]] = {}
        expected = by_library(text)
        for _ in range(arguments.rounds):
            taken, _ = cpu_s(by_library, text)
            seconds.setdefault("tokenizers", []).append(taken)
            for size in caches:
                tokenizer = load_tokenizer(described)
                tokenizer.prepare()
                with patch.object(merging, "_MAX_ITEMS", size):
                    taken, found = cpu_s(partial(tokenizer.encode, add_special=False), text)
                if found != expected:
                    raise RuntimeError(f"other tokens for {kind}")
                seconds.setdefault(f"tampu, {size} words", []).append(taken)
        words = len(set(text.split()))
        print(f"{kind}: {len(text) / MB:.1f} MB, {words} different words, {len(expected)} tokens")
        for name, each in seconds.items():
            speed = len(text) / MB / median(each)
            print(f"  {name:20} {median(each):6.2f} s of CPU time, {speed:5.1f} MB/s", flush=True)


if __name__ == "__main__":
    main()
