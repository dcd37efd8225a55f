"""Writes a training state as a Hugging Face checkpoint: ``python -m tools.train_demo.export``."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import (
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
)

from tools.train_demo import batches, data, model, tokenizer

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
)  # fmt: skip


def text_config(tok: Tokenizer, shape: model.Shape) -> dict[str, Any]:
    """The configuration of the text model."""
    kinds = [
        "full_attention" if (i + 1) % shape.period == 0 else "sliding_attention"
        for i in range(shape.layers)
    ]
    return {
        **shape.text, "layer_types": kinds, "vocab_size": tok.get_vocab_size(),
        "hidden_activation": "gelu_pytorch_tanh", "attention_bias": False,
        "attn_logit_softcapping": None, "final_logit_softcapping": None,
        "rope_theta": model.GLOBAL_BASE, "rope_local_base_freq": model.LOCAL_BASE,
        "model_type": "gemma3_text", "tie_word_embeddings": True,
        "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
    }  # fmt: skip


def config(tok: Tokenizer, shape: model.Shape) -> Gemma3Config:
    """The configuration of a checkpoint that sees."""
    vision = {
        **model.VISION, "model_type": "siglip_vision_model", "vision_use_head": False,
        "hidden_act": "gelu_pytorch_tanh",
    }  # fmt: skip
    return Gemma3Config(
        text_config=text_config(tok, shape), vision_config=vision,
        mm_tokens_per_image=tokenizer.IMAGE_TOKENS,
        boi_token_index=tok.token_to_id("<start_of_image>"),
        eoi_token_index=tok.token_to_id("<end_of_image>"),
        image_token_index=tok.token_to_id("<image_soft_token>"),
        bos_token_id=2, pad_token_id=0, eos_token_id=[1, tok.token_to_id("<end_of_turn>")],
        tie_word_embeddings=True, initializer_range=0.02, dtype="float32",
    )  # fmt: skip


def same_names(state: dict[str, torch.Tensor], theirs: list[str]) -> dict[str, torch.Tensor]:
    """Our tensors under the names of Hugging Face's class."""
    out = {}
    for name in theirs:
        ours = name.removeprefix("model.").replace("vision_tower.vision_model.", "vision_tower.")
        if name == "lm_head.weight":
            ours = "language_model.embed_tokens.weight"
        out[name] = state[ours] if ours in state else state[f"language_model.{ours}"]
    return out


@torch.no_grad()
def differs(ours: model.Demo, theirs: Any, tok: Tokenizer, shape: model.Shape) -> float:
    """The greatest difference of the logits over held-out prompts of all skills."""
    worst = 0.0
    for skill in data.SKILLS if shape.sees else data.TEXT_SKILLS:
        for example in data.held_out(skill, 3, 5):
            answer = {"role": "assistant", "content": example.answer}
            one = batches.row(tok, [*example.messages, answer], example.tools)
            b = batches.batch(tok, [one], len(one.ids))
            mine = ours.logits(ours(b.ids, b.soft, b.pixels))
            inputs: dict[str, Any] = {"input_ids": b.ids}
            if shape.sees:
                inputs |= {"pixel_values": b.pixels, "token_type_ids": b.soft.long()}
            other = theirs(**inputs).logits
            worst = max(worst, float((mine - other).abs().max()))
    return worst


def export(run: Path, out: Path) -> None:
    """Write the run's model as a checkpoint folder."""
    out.mkdir(parents=True, exist_ok=True)
    tok = Tokenizer.from_file(str(run / "tokenizer.json"))
    state = torch.load(run / "state.pt", map_location="cpu")
    shape = model.Shape(**json.loads((run / "shape.json").read_text()))
    ours = model.Demo(tok.get_vocab_size(), shape)
    ours.load_state_dict(state["model"])
    theirs: Any
    if shape.sees:
        theirs = Gemma3ForConditionalGeneration(config(tok, shape)).eval()
    else:
        theirs = Gemma3ForCausalLM(Gemma3TextConfig(**text_config(tok, shape))).eval()
    theirs.load_state_dict(same_names(state["model"], list(theirs.state_dict())))
    worst = differs(ours.eval(), theirs, tok, shape)
    print(f"greatest difference of logits: {worst:.2e}")
    if worst > 1e-3:
        raise SystemExit("the checkpoint would not compute what was trained")
    theirs.generation_config.eos_token_id = [1, tok.token_to_id("<end_of_turn>")]
    theirs.generation_config.bos_token_id, theirs.generation_config.pad_token_id = 2, 0
    theirs.save_pretrained(out)
    _as_published(out, shape)
    for name in TOKENIZER_FILES:
        shutil.copy(run / name, out / name)
    if shape.sees:
        _write_preprocessor(out)
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    _write(
        out / "training.json",
        {
            "seed": state["seed"], "commit": head.stdout.strip() if head.returncode == 0 else "",
            "minutes": round(state["spent"] / 60, 1), "tokens": state["tokens"],
            "steps": state["step"], "parameters": sum(p.numel() for p in ours.parameters()),
            "accuracy_while_training": state["accuracy"],
        },
    )  # fmt: skip


def _write_preprocessor(out: Path) -> None:
    side = {"height": model.VISION["image_size"], "width": model.VISION["image_size"]}
    preprocessor = {
        "do_convert_rgb": True, "do_normalize": True, "do_pan_and_scan": False, "do_rescale": True,
        "do_resize": True, "image_mean": [0.5, 0.5, 0.5], "image_processor_type":
        "Gemma3ImageProcessor", "image_seq_length": tokenizer.IMAGE_TOKENS,
        "image_std": [0.5, 0.5, 0.5], "processor_class": "Gemma3Processor", "resample": 2,
        "rescale_factor": 1 / 255, "size": side,
    }  # fmt: skip
    _write(out / "preprocessor_config.json", preprocessor)
    _write(
        out / "processor_config.json",
        {"image_seq_length": tokenizer.IMAGE_TOKENS, "processor_class": "Gemma3Processor"},
    )


def _as_published(out: Path, shape: model.Shape) -> None:
    """Name tensors and rope settings as the published Gemma3 checkpoints do."""
    weights = load_file(out / "model.safetensors")
    renamed = {
        name.replace("vision_tower.", "vision_tower.vision_model.")
        if not name.startswith("vision_tower.vision_model.") else name: tensor
        for name, tensor in weights.items()
    }  # fmt: skip
    save_file(renamed, out / "model.safetensors", {"format": "pt"})
    settings = json.loads((out / "config.json").read_text())
    text = settings["text_config"] if shape.sees else settings
    text["rope_theta"], text["rope_local_base_freq"] = model.GLOBAL_BASE, model.LOCAL_BASE
    for key in ("rope_parameters", "_sliding_window_pattern"):
        text.pop(key, None)
    text["sliding_window_pattern"] = shape.period
    _write(out / "config.json", settings)
    kind = Gemma3ForConditionalGeneration if shape.sees else Gemma3ForCausalLM
    again = kind.from_pretrained(out).state_dict()
    for name, tensor in load_file(out / "model.safetensors").items():
        ours = name.replace("vision_tower.vision_model.", "vision_tower.")
        ours = ours.replace("language_model.model.", "language_model.").removeprefix("model.")
        if not torch.equal(again["model." + ours], tensor):
            raise SystemExit(f"{name} does not come back as it was saved")


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def main() -> None:
    """Parse the command line and export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, help="the --out folder of train")
    parser.add_argument("--out", required=True, help="the checkpoint folder to write")
    args = parser.parse_args()
    export(Path(args.run), Path(args.out))


if __name__ == "__main__":
    main()
