"""What a conversion needs of memory does not grow with the checkpoint."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from support import handmade_checkpoints as handmade

pytestmark = pytest.mark.slow

WIDTH, INNER, LAYERS = 512, 8192, 16
LARGEST = WIDTH * INNER * 4  # bytes: 16 MiB
CONFIG = handmade.CONFIG | {
    "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
    "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64,
}  # fmt: skip
MATRICES = {"self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (WIDTH, WIDTH)}
MATRICES |= {"self_attn.v_proj": (WIDTH, WIDTH), "self_attn.o_proj": (WIDTH, WIDTH)}
MATRICES |= {"mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH)}
MATRICES |= {"mlp.down_proj": (WIDTH, INNER)}
NORMS = ("input_layernorm", "post_attention_layernorm")
WORK = """
import sys
from pathlib import Path
from tampu.convert import convert

def most():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

before = most()
convert(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], threads=1)
print(most() - before)
"""


def write_zeros(folder: Path) -> int:
    """Write a checkpoint in F32 whose weights are a hole in their file; return their bytes."""
    handmade.write(folder, config=CONFIG, tensors={})
    shapes: dict[str, tuple[int, ...]] = {"model.norm.weight": (WIDTH,)}
    for name in ("model.embed_tokens", "lm_head"):
        shapes[f"{name}.weight"] = (handmade.ROWS, WIDTH)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}{name}.weight": shape for name, shape in MATRICES.items()}
        shapes |= {f"{prefix}{name}.weight": (WIDTH,) for name in NORMS}
    table, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        table[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(table).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + end)
    return end


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the peak")
@pytest.mark.parametrize("type_", ["F32", "F16"])
def test_memory_is_bounded_by_the_largest_tensor(tmp_path: Path, type_: str) -> None:
    size = write_zeros(tmp_path / "large")
    assert size > 40 * LARGEST
    made = tmp_path / "made.gguf"
    command = [sys.executable, "-c", WORK, str(tmp_path / "large"), str(made), type_]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 3 * LARGEST
    assert made.stat().st_size > size // 2
