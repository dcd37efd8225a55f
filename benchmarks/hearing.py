"""Makes models that hear, of real size with random weights: `python -m benchmarks.hearing`.

The shapes of Qwen3-ASR 0.6B and Voxtral Mini 3B: the text in Q4_K_M, the encoder of sounds in F16,
in a file of its own as llama.cpp has them; both engines load the same two files. The rest is as in
`benchmarks.random_models`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from benchmarks.transcription import MODELS
from tampu.ml.types import GGMLType

QWEN, VOXTRAL = MODELS
BINS, PLACES = 128, 1500
QWEN_CHANNELS = 480
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MISTRAL = (
    "{% for message in messages %}{% if message['role'] == 'system' %}"
    "[SYSTEM_PROMPT]{{ message['content'] }}[/SYSTEM_PROMPT]{% elif message['role'] == 'user' %}"
    "[INST]{{ message['content'] }}[/INST]{% else %}{{ message['content'] }}{% endif %}{% endfor %}"
)


@dataclass(frozen=True, kw_only=True)
class Tower:
    """The shape of an encoder of sounds; `keys` are those of its projector."""

    projector: str
    width: int
    layers: int
    heads: int
    feed_forward: int
    output: int
    without_bias: Sequence[str] = ()
    keys: Mapping[str, int]

    def plan_layers(self) -> Iterator[Planned]:
        """Yield the positions, the layers and the last norm."""
        yield Planned("a.position_embd.weight", "position", (PLACES, self.width), GGMLType.F32)
        for layer in range(self.layers):
            prefix = f"a.blk.{layer}."
            for name in ("ln1", "ln2"):
                yield from self.plan_norm(prefix + name)
            for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
                has_bias = name not in self.without_bias
                yield from matrix(prefix + name, self.width, self.width, has_bias=has_bias)
            yield from matrix(f"{prefix}ffn_up", self.feed_forward, self.width)
            yield from matrix(f"{prefix}ffn_down", self.width, self.feed_forward)
        yield from self.plan_norm("a.post_ln")

    def plan_norm(self, name: str) -> Iterator[Planned]:
        """Yield a norm with its bias."""
        yield Planned(f"{name}.weight", "norm", (self.width,), GGMLType.F32)
        yield Planned(f"{name}.bias", "zero", (self.width,), GGMLType.F32)


@dataclass(frozen=True, kw_only=True)
class Hearing:
    """A model that hears.

    Attributes:
        title: its name.
        architecture: of the text model.
        decoder: its shape.
        is_tied: whether the embeddings are the output's matrix too.
        template: of chats.
        more: writes metadata that only this text model has.
        tower: the encoder's shape.
        plan_tower: yields the encoder's tensors, those of the projector too.
    """

    title: str
    architecture: str
    decoder: Decoder
    is_tied: bool
    template: str
    more: Callable[[gguf.GGUFWriter], None] = field(default=lambda _: None)
    tower: Tower
    plan_tower: Callable[[Tower], Iterator[Planned]]

    def plan_text(self, mix: QuantMix) -> Iterator[Planned]:
        """Yield the text model's tensors in the order of the file."""
        table = (self.decoder.vocabulary, self.decoder.hidden)
        yield Planned("token_embd.weight", "token_embd", table, mix.embedding)
        yield Planned("output_norm.weight", "norm", (self.decoder.hidden,), GGMLType.F32)
        if not self.is_tied:
            yield Planned("output.weight", "output", table, mix.embedding)
        for layer in range(self.decoder.layers):
            yield from self.decoder.plan_layer(layer, mix)


def matrix(name: str, rows: int, columns: int, *, has_bias: bool = True) -> Iterator[Planned]:
    """Yield a matrix; the same ones of all layers have the same values."""
    source = name.rpartition(".")[2] if ".blk." in name else name
    yield Planned(f"{name}.weight", f"a.{source}", (rows, columns), GGMLType.F16)
    if has_bias:
        yield Planned(f"{name}.bias", "zero", (rows,), GGMLType.F32)


def plan_qwen_tower(tower: Tower) -> Iterator[Planned]:
    """Yield three convolutions over maps, a projection of their channels, and the layers."""
    inputs = 1
    for index in range(1, 4):
        shape = (QWEN_CHANNELS, inputs, 3, 3)
        kernel = f"a.conv2d.{index}"
        yield Planned(f"{kernel}.weight", f"conv.{inputs}", shape, GGMLType.F16)
        yield Planned(f"{kernel}.bias", "zero", (QWEN_CHANNELS, 1, 1), GGMLType.F32)
        inputs = QWEN_CHANNELS
    yield from matrix("a.conv_out", tower.width, QWEN_CHANNELS * BINS // 8, has_bias=False)
    yield from tower.plan_layers()
    yield from matrix("mm.a.mlp.1", tower.width, tower.width)
    yield from matrix("mm.a.mlp.2", tower.output, tower.width)


def plan_voxtral_tower(tower: Tower) -> Iterator[Planned]:
    """Yield two convolutions over frames and the layers: Whisper's; and the projector."""
    inputs = BINS
    for index in (1, 2):
        shape = (tower.width, inputs, 3)
        yield Planned(f"a.conv1d.{index}.weight", f"conv.{inputs}", shape, GGMLType.F16)
        yield Planned(f"a.conv1d.{index}.bias", "zero", (tower.width, 1), GGMLType.F32)
        inputs = tower.width
    yield from tower.plan_layers()
    stacked = tower.width * tower.keys["projector.stack_factor"]
    yield from matrix("mm.a.mlp.1", tower.output, stacked, has_bias=False)
    yield from matrix("mm.a.mlp.2", tower.output, tower.output, has_bias=False)


def add_qwen_keys(writer: gguf.GGUFWriter) -> None:
    """Write what a model with positions of three numbers has."""
    writer.add_rope_dimension_count(128)
    writer.add_rope_dimension_sections([24, 20, 20, 0])
    writer.add_uint32(f"{writer.arch}.n_deepstack_layers", 0)


SHAPES = {
    QWEN: Hearing(
        title="Qwen3-ASR 0.6B",
        architecture="qwen3vl",
        decoder=Decoder(
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
        ),
        is_tied=True,
        template=CHATML,
        more=add_qwen_keys,
        tower=Tower(
            projector="qwen3a",
            width=896,
            layers=18,
            heads=14,
            feed_forward=3584,
            output=1024,
            keys={"n_window": 50, "n_window_infer": 800},  # in frames
        ),
        plan_tower=plan_qwen_tower,
    ),
    VOXTRAL: Hearing(
        title="Voxtral Mini 3B",
        architecture="llama",
        decoder=Decoder(
            layers=30,
            vocabulary=131_072,
            hidden=3072,
            heads=32,
            kv_heads=8,
            head_size=128,
            feed_forward=8192,
            context=131_072,
            epsilon=1e-5,
            rope_base=100_000_000.0,
            norms=("attn_norm", "ffn_norm"),
        ),
        is_tied=False,
        template=MISTRAL,
        tower=Tower(
            projector="voxtral",
            width=1280,
            layers=32,
            heads=20,
            feed_forward=5120,
            output=3072,
            without_bias=("attn_k",),
            keys={"projector.stack_factor": 4},
        ),
        plan_tower=plan_voxtral_tower,
    ),
}


def add_text_metadata(writer: gguf.GGUFWriter, name: str) -> None:
    """Write the metadata of a text model."""
    shape = SHAPES[name]
    shape.decoder.add_metadata(writer, f"Random {shape.title} Q4_K_M", QUANT_MIXES["Q4_K_M"])
    shape.more(writer)
    add_vocabulary(writer, shape.decoder.vocabulary, MODELS[name].control)
    writer.add_chat_template(shape.template)


def add_tower_metadata(writer: gguf.GGUFWriter, name: str) -> None:
    """Write the metadata of an encoder, as in llama.cpp's files."""
    tower = SHAPES[name].tower
    writer.add_name(f"Random encoder of {SHAPES[name].title} F16")
    writer.add_type("mmproj")
    writer.add_file_type(QUANT_MIXES["F16"].file_type)
    writer.add_bool("clip.has_audio_encoder", val=True)
    writer.add_clip_projector_type(tower.projector)
    for key, value in {
        "num_mel_bins": BINS,
        "block_count": tower.layers,
        "embedding_length": tower.width,
        "feed_forward_length": tower.feed_forward,
        "attention.head_count": tower.heads,
        "projection_dim": tower.output,
        **tower.keys,
    }.items():
        writer.add_uint32(f"clip.audio.{key}", value)
    writer.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)


def main() -> None:
    parser = arguments_of("Make a model that hears, to measure with.")
    parser.add_argument("--model", choices=[*MODELS], default=QWEN)
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    name, shape, files = arguments.model, SHAPES[arguments.model], MODELS[arguments.model]
    text, tower = shape.plan_text(QUANT_MIXES["Q4_K_M"]), shape.plan_tower(shape.tower)
    write_file(
        out / files.text_file,
        shape.architecture,
        lambda writer: add_text_metadata(writer, name),
        text,
        arguments.threads,
    )
    write_file(
        out / files.tower_file,
        "clip",
        lambda writer: add_tower_metadata(writer, name),
        tower,
        arguments.threads,
    )


if __name__ == "__main__":
    main()
