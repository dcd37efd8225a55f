"""Makes a model that hears, of real size with random weights: `python -m benchmarks.qwen3_asr`.

The shape of Qwen3-ASR 0.6B: the text in Q4_K_M, the encoder of sounds in F16, in a file of its own
as llama.cpp has them; both engines load the same two files. The rest is as in
`benchmarks.random_models`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf

from benchmarks.moe import add_vocabulary
from benchmarks.random_models import (
    QUANT_MIXES,
    Decoder,
    Planned,
    QuantMix,
    arguments_of,
    write_file,
)
from benchmarks.transcription import AUDIO, TEXT_FILE, TOWER_FILE
from tampu.ml.types import GGMLType

DECODER = Decoder(
    layers=28,
    vocabulary=151_936,
    hidden=1024,
    heads=16,
    kv_heads=8,
    head_size=128,
    feed_forward=3072,
    context=65_536,
    epsilon=1e-6,
    rope_base=1_000_000.0,
    norms=("attn_norm", "attn_q_norm", "attn_k_norm", "ffn_norm"),
)
SECTIONS = [24, 20, 20, 0]  # of the rotated pairs, for positions of three numbers

WIDTH, TOWER_LAYERS, TOWER_HEADS, TOWER_FEED_FORWARD = 896, 18, 14, 3584
BINS, CHANNELS, PLACES, WINDOW, WINDOW_INFER = 128, 480, 1500, 50, 800  # windows in frames
TOWER_MATRICES = {
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (WIDTH, WIDTH),
    "attn_v": (WIDTH, WIDTH),
    "attn_out": (WIDTH, WIDTH),
    "ffn_up": (TOWER_FEED_FORWARD, WIDTH),
    "ffn_down": (WIDTH, TOWER_FEED_FORWARD),
}
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def plan_text(mix: QuantMix) -> Iterator[Planned]:
    """Yield the text model's tensors in the order of the file."""
    table = (DECODER.vocabulary, DECODER.hidden)
    yield Planned("token_embd.weight", "token_embd", table, mix.embedding)
    yield Planned("output_norm.weight", "norm", (DECODER.hidden,), GGMLType.F32)
    for layer in range(DECODER.layers):
        yield from DECODER.plan_layer(layer, mix)


def plan_tower() -> Iterator[Planned]:
    """Yield the tensors of the encoder and of the projector."""
    inputs = 1
    for index in range(1, 4):
        shape = (CHANNELS, inputs, 3, 3)
        kernel = f"a.conv2d.{index}"
        yield Planned(f"{kernel}.weight", f"conv.{inputs}", shape, GGMLType.F16)
        yield Planned(f"{kernel}.bias", "zero", (CHANNELS, 1, 1), GGMLType.F32)
        inputs = CHANNELS
    yield from _matrix("a.conv_out", "conv_out", (WIDTH, CHANNELS * BINS // 8), has_bias=False)
    yield Planned("a.position_embd.weight", "position", (PLACES, WIDTH), GGMLType.F32)
    for layer in range(TOWER_LAYERS):
        prefix = f"a.blk.{layer}."
        for name in ("ln1", "ln2"):
            yield from _norm(prefix + name)
        for name, matrix in TOWER_MATRICES.items():
            yield from _matrix(prefix + name, f"a.{name}", matrix)
    yield from _norm("a.post_ln")
    yield from _matrix("mm.a.mlp.1", "mlp.1", (WIDTH, WIDTH))
    yield from _matrix("mm.a.mlp.2", "mlp.2", (DECODER.hidden, WIDTH))


def _matrix(
    name: str, source: str, shape: tuple[int, int], *, has_bias: bool = True
) -> Iterator[Planned]:
    yield Planned(f"{name}.weight", source, shape, GGMLType.F16)
    if has_bias:
        yield Planned(f"{name}.bias", "zero", shape[:1], GGMLType.F32)


def _norm(name: str) -> Iterator[Planned]:
    yield Planned(f"{name}.weight", "norm", (WIDTH,), GGMLType.F32)
    yield Planned(f"{name}.bias", "zero", (WIDTH,), GGMLType.F32)


def add_text_metadata(writer: gguf.GGUFWriter) -> None:
    """Write the metadata of the text model."""
    DECODER.add_metadata(writer, "Random Qwen3-ASR 0.6B Q4_K_M", QUANT_MIXES["Q4_K_M"])
    writer.add_rope_dimension_count(DECODER.head_size)
    writer.add_rope_dimension_sections(SECTIONS)
    writer.add_uint32(f"{writer.arch}.n_deepstack_layers", 0)
    add_vocabulary(writer, DECODER.vocabulary, AUDIO)
    writer.add_chat_template(TEMPLATE)


def add_tower_metadata(writer: gguf.GGUFWriter) -> None:
    """Write the metadata of the encoder, as in llama.cpp's files."""
    writer.add_name("Random encoder of Qwen3-ASR 0.6B F16")
    writer.add_type("mmproj")
    writer.add_file_type(QUANT_MIXES["F16"].file_type)
    writer.add_bool("clip.has_audio_encoder", val=True)
    writer.add_clip_projector_type("qwen3a")
    for key, value in {
        "num_mel_bins": BINS,
        "block_count": TOWER_LAYERS,
        "embedding_length": WIDTH,
        "feed_forward_length": TOWER_FEED_FORWARD,
        "attention.head_count": TOWER_HEADS,
        "projection_dim": DECODER.hidden,
        "n_window": WINDOW,
        "n_window_infer": WINDOW_INFER,
    }.items():
        writer.add_uint32(f"clip.audio.{key}", value)
    writer.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)


def main() -> None:
    arguments = arguments_of("Make a model that hears, to measure with.").parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    text = plan_text(QUANT_MIXES["Q4_K_M"])
    write_file(out / TEXT_FILE, "qwen3vl", add_text_metadata, text, arguments.threads)
    write_file(out / TOWER_FILE, "clip", add_tower_metadata, plan_tower(), arguments.threads)


if __name__ == "__main__":
    main()
