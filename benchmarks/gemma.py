"""Makes a model with image input, of real size with random weights: `python -m benchmarks.gemma`.

The text has the shape of Gemma 3's 4B model in Q4_K_M, the tower that of SigLIP 400M in F16, in a
file of its own as llama.cpp has them; both engines load the same two files. The rest is as in
`benchmarks.random_models`: all layers share the values of one, and the vocabulary is made up.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf

from benchmarks.random_models import (
    QUANT_MIXES,
    Decoder,
    Planned,
    QuantMix,
    arguments_of,
    write_file,
)
from benchmarks.vision import TEXT_FILE, TOWER_FILE
from benchmarks.vocabulary import CONSONANTS, VOWELS, make_words
from tampu.ml.types import GGMLType

DECODER = Decoder(
    layers=34,
    vocabulary=262_144,
    hidden=2560,
    heads=8,
    kv_heads=4,
    head_size=256,
    feed_forward=10_240,
    context=131_072,
    epsilon=1e-6,
    rope_base=1_000_000.0,
    norms=(
        "attn_norm",
        "attn_q_norm",
        "attn_k_norm",
        "post_attention_norm",
        "ffn_norm",
        "post_ffw_norm",
    ),
)
WINDOW, ROPE_FACTOR = 1024, 8.0

TOWER_LAYERS, WIDTH, TOWER_HEADS, TOWER_FEED_FORWARD = 27, 1152, 16, 4304
SIDE, PATCH, PLACES = 896, 14, 64 * 64
TOWER_MATRICES = {
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (WIDTH, WIDTH),
    "attn_v": (WIDTH, WIDTH),
    "attn_out": (WIDTH, WIDTH),
    "ffn_up": (TOWER_FEED_FORWARD, WIDTH),
    "ffn_down": (WIDTH, TOWER_FEED_FORWARD),
}

CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
CONTROL += ["<start_of_image>", "<end_of_image>", "<image_soft_token>"]
UNKNOWN = "<unk>"
SPACE = "▁"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<start_of_turn>{{ 'model' if message['role'] == 'assistant' else 'user' }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}"
    "<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def make_pieces() -> tuple[list[str], list[int]]:
    """Return a SentencePiece vocabulary's texts and GGUF's type of each."""
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    plain = ["\n", "\n\n", SPACE, *CONSONANTS, *VOWELS]
    plain += make_words(DECODER.vocabulary - len(CONTROL) - len(bytes_) - len(plain), SPACE)
    types = [2 if text == UNKNOWN else 3 for text in CONTROL] + [6] * 256 + [1] * len(plain)
    return [*CONTROL, *bytes_, *plain], types


def plan_text(mix: QuantMix) -> Iterator[Planned]:
    """Yield the text model's tensors in the order of the file."""
    table = (DECODER.vocabulary, DECODER.hidden)
    yield Planned("token_embd.weight", "token_embd", table, mix.embedding)
    yield Planned("output_norm.weight", "norm", (DECODER.hidden,), GGMLType.F32)
    for layer in range(DECODER.layers):
        yield from DECODER.plan_layer(layer, mix)


def plan_tower() -> Iterator[Planned]:
    """Yield the tower's and the projector's tensors."""
    yield Planned("v.patch_embd.weight", "patch", (WIDTH, 3, PATCH, PATCH), GGMLType.F16)
    yield Planned("v.patch_embd.bias", "zero", (WIDTH,), GGMLType.F32)
    yield Planned("v.position_embd.weight", "position", (PLACES, WIDTH), GGMLType.F32)
    for layer in range(TOWER_LAYERS):
        prefix = f"v.blk.{layer}."
        for name in ("ln1", "ln2"):
            yield from _norm(prefix + name)
        for name, shape in TOWER_MATRICES.items():
            yield Planned(f"{prefix}{name}.weight", f"v.{name}", shape, GGMLType.F16)
            yield Planned(f"{prefix}{name}.bias", "zero", shape[:1], GGMLType.F32)
    yield from _norm("v.post_ln")
    yield Planned("mm.soft_emb_norm.weight", "norm", (WIDTH,), GGMLType.F32)
    yield Planned("mm.input_projection.weight", "projection", (WIDTH, DECODER.hidden), GGMLType.F16)


def _norm(name: str) -> Iterator[Planned]:
    yield Planned(f"{name}.weight", "norm", (WIDTH,), GGMLType.F32)
    yield Planned(f"{name}.bias", "zero", (WIDTH,), GGMLType.F32)


def add_text_metadata(writer: gguf.GGUFWriter) -> None:
    """Write the metadata of the text model."""
    DECODER.add_metadata(writer, "Random Gemma 4B Q4_K_M", QUANT_MIXES["Q4_K_M"])
    writer.add_sliding_window(WINDOW)
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(ROPE_FACTOR)
    pieces, types = make_pieces()
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(pieces)
    writer.add_token_scores([-float(index) for index in range(len(pieces))])
    writer.add_token_types(types)
    writer.add_pad_token_id(CONTROL.index("<pad>"))
    writer.add_bos_token_id(CONTROL.index("<bos>"))
    writer.add_eos_token_id(CONTROL.index("<end_of_turn>"))
    writer.add_unk_token_id(CONTROL.index(UNKNOWN))
    writer.add_add_bos_token(value=True)
    writer.add_add_space_prefix(value=False)
    writer.add_chat_template(TEMPLATE)


def add_tower_metadata(writer: gguf.GGUFWriter) -> None:
    """Write the metadata of the vision tower, as in llama.cpp's files."""
    writer.add_name("Random SigLIP 400M F16")
    writer.add_file_type(QUANT_MIXES["F16"].file_type)
    writer.add_clip_has_vision_encoder(value=True)
    writer.add_clip_projector_type("gemma3")
    writer.add_vision_projection_dim(DECODER.hidden)
    writer.add_vision_image_size(SIDE)
    writer.add_vision_patch_size(PATCH)
    writer.add_vision_embedding_length(WIDTH)
    writer.add_vision_feed_forward_length(TOWER_FEED_FORWARD)
    writer.add_vision_block_count(TOWER_LAYERS)
    writer.add_vision_head_count(TOWER_HEADS)
    writer.add_vision_attention_layernorm_eps(1e-6)
    writer.add_vision_image_mean([0.5] * 3)
    writer.add_vision_image_std([0.5] * 3)
    writer.add_vision_use_gelu(value=True)


def main() -> None:
    arguments = arguments_of("Make a model that sees, to measure with.").parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    text = plan_text(QUANT_MIXES["Q4_K_M"])
    write_file(out / TEXT_FILE, "gemma3", add_text_metadata, text, arguments.threads)
    write_file(out / TOWER_FILE, "clip", add_tower_metadata, plan_tower(), arguments.threads)


if __name__ == "__main__":
    main()
