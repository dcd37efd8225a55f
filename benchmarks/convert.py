"""Converting a checkpoint beside a plain copy of it: `python -m benchmarks.convert DIR`.

DIR gets a made-up checkpoint in F16 with the shape of Llama 3.2 1B and a vocabulary as large, and
what is made of it. Both run warm, in turn; the smallest time counts. The peak of memory is that of
a process that does nothing but convert.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from benchmarks.models import DECODER
from benchmarks.vocabulary import make_vocabulary
from tampu.convert import convert

NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write_checkpoint(folder: Path, layers: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns), np.float32) * 0.02).astype(np.float16)

    tensors = {"model.embed_tokens.weight": matrix(DECODER.vocabulary, DECODER.hidden)}
    tensors["model.norm.weight"] = np.ones(DECODER.hidden, np.float16)
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = np.ones(DECODER.hidden, np.float16)
        for name, shape in DECODER.matrices.items():
            tensors[f"{prefix}{NAMES[name]}.weight"] = matrix(*shape)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": DECODER.vocabulary,
        "hidden_size": DECODER.hidden,
        "intermediate_size": DECODER.feed_forward,
        "num_hidden_layers": layers,
        "num_attention_heads": DECODER.heads,
        "num_key_value_heads": DECODER.kv_heads,
        "head_dim": DECODER.head_size,
        "max_position_embeddings": DECODER.context,
        "rms_norm_eps": DECODER.epsilon,
        "rope_theta": DECODER.rope_base,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))


def tokenizer() -> dict[str, object]:
    vocabulary = make_vocabulary()
    split = {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    return {
        "added_tokens": [
            {"id": index, "content": text, "special": True}
            for index, (text, kind) in enumerate(
                zip(vocabulary.tokens, vocabulary.types, strict=True)
            )
            if kind == 3
        ],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "decoder": {"type": "ByteLevel"},
        "model": {
            "type": "BPE",
            "vocab": {text: index for index, text in enumerate(vocabulary.tokens)},
            "merges": vocabulary.merges,
        },
    }


def once(folder: Path, made: Path) -> None:
    begin = time.perf_counter()
    convert(folder, made, "F16")
    taken = time.perf_counter() - begin
    print(json.dumps({"seconds": taken, "peak_mib": peak_mib()}))


def peak_mib() -> float:
    """Return this program's peak memory; getrusage would include that of its parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    source, made = given.folder / "checkpoint", given.folder / "made.gguf"
    if given.once:
        once(source, made)
        return
    if not (source / "tokenizer.json").exists():
        write_checkpoint(source, given.layers)
    copies, conversions, peaks = [], [], []
    call = [sys.executable, "-m", "benchmarks.convert", str(given.folder), "--once"]
    for _ in range(given.rounds):
        begin = time.perf_counter()
        shutil.copyfile(source / "model.safetensors", given.folder / "copy")
        subprocess.run(["sync", str(given.folder / "copy")], check=True)
        copies.append(time.perf_counter() - begin)
        (given.folder / "copy").unlink()
        done = subprocess.run(call, capture_output=True, text=True, check=True)
        result = json.loads(done.stdout)
        conversions.append(result["seconds"])
        peaks.append(result["peak_mib"])
        made.unlink()
    size = (source / "model.safetensors").stat().st_size
    pairs = [ours / theirs for ours, theirs in zip(conversions, copies, strict=True)]
    largest = DECODER.vocabulary * DECODER.hidden * 2
    print(f"checkpoint {size / 2**20:.0f} MiB, its largest tensor {largest / 2**20:.0f} MiB")
    print(f"copy and sync {min(copies):.2f} s, convert {min(conversions):.2f} s")
    print(f"convert / copy {min(conversions) / min(copies):.2f} at best, ", end="")
    print(f"{statistics.median(pairs):.2f} median of pairs; peak {max(peaks):.0f} MiB")


if __name__ == "__main__":
    main()
