"""Measure each architecture against transformers and write the table of docs/models.md.

python -m tools.models_table          measures, a minute or two, and writes the table
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- table: made by tools/models_table.py -->", "<!-- end of the table -->"

Measured = tuple[str, str, float]  # architecture, what was compared, largest relative error

MODELS = {
    "afmoe": "AFMoE: Trinity",
    "apertus": "Apertus",
    "baichuan": "Baichuan 1 and 2",
    "bailingmoe2": "Ling 2, Ring 2",
    "bert": "BERT, DistilBERT, RoBERTa, XLM-RoBERTa: BGE, E5, MiniLM, for embeddings and ranking",
    "bloom": "BLOOM",
    "codeshell": "CodeShell",
    "cohere2": "Command R7B and A, Aya Vision's text, Tiny Aya",
    "command-r": "Command R and R+, Aya 23 and Expanse",
    "deepseek2": "DeepSeek V2, V3 and R1, Kimi K2, GLM-4.7-Flash",
    "deepseek2-ocr": "DeepSeek-OCR 1 and 2",
    "dots1": "dots.llm1",
    "ernie4_5": "ERNIE 4.5 (0.3B)",
    "ernie4_5-moe": "ERNIE 4.5 mixtures of experts",
    "eurobert": "EuroBERT",
    "exaone": "EXAONE 3, 3.5, Deep",
    "exaone-moe": "K-EXAONE",
    "exaone4": "EXAONE 4",
    "falcon": "Falcon 1 and 2",
    "falcon-h1": "Falcon-H1",
    "gemma": "Gemma 1",
    "gemma-embedding": "EmbeddingGemma",
    "gemma-embedding2": "EmbeddingGemma 2",
    "gemma2": "Gemma 2",
    "gemma3": "Gemma 3, text and vision",
    "gemma4": "Gemma 4, text and vision",
    "glm4": "GLM-4 and GLM-Z1 (0414), GLM-OCR",
    "glm4moe": "GLM-4.5 to 4.7, GLM-4.5-Air, Solar Open",
    "gpt-oss": "gpt-oss (also `gptoss`)",
    "gpt2": "GPT-2",
    "gptj": "GPT-J",
    "gptneox": "GPT-NeoX, Pythia",
    "granite": "Granite 3, 4.1",
    "granite_swa": "Granite with sliding windows",
    "granitehybrid": "Granite 4 H",
    "granitemoe": "Granite 3 mixtures of experts",
    "hunyuan-dense": "Hunyuan 0.5B to 7B, Hunyuan-MT",
    "hunyuan-moe": "Hunyuan-A13B",
    "hy_v3": "Hy3",
    "internlm2": "InternLM 2, 2.5",
    "jais2": "Jais 2",
    "jamba": "Jamba",
    "jina-bert-v2": "Jina Embeddings v2",
    "jina-bert-v3": "Jina Embeddings v3",
    "kimi-linear": "Kimi Linear",
    "laguna": "Laguna",
    "lfm2": "LFM2, LFM2-VL",
    "lfm2moe": "LFM2 and LFM2.5 mixtures of experts",
    "llama": "Llama 1 to 3.3, Mistral, Mixtral, LLaVA 1.5, Ultravox, Voxtral, SmolVLM, Idefics 3",
    "llama4": "Llama 4, text and vision",
    "mamba": "Mamba 1",
    "mamba2": "Mamba 2, Codestral Mamba",
    "mellum": "Mellum 2",
    "minicpm": "MiniCPM 1, 2, 4",
    "minicpm3": "MiniCPM3",
    "minimax-m2": "MiniMax-M2, M2.1, M2.5",
    "mistral3": "Mistral Small 3, Ministral 3, with Pixtral's vision encoder",
    "mistral4": "Mistral Small 4, text",
    "mllama": "Llama 3.2 Vision",
    "modern-bert": "ModernBERT, Granite Embedding R2, GTE-ModernBERT, mmBERT, Laya, Julia",
    "mpt": "MPT",
    "muse-glimmer": "Muse Glimmer, its text",
    "nemotron": "Nemotron-4, Minitron",
    "nemotron_h": "Nemotron-H, Nemotron Nano 2",
    "nemotron_h_moe": "Nemotron 3 Nano and Super, Nemotron 3 Nano Omni's text and vision",
    "neo-bert": "NeoBERT",
    "nomic-bert": "Nomic Embed v1, v1.5",
    "nomic-bert-moe": "Nomic Embed v2",
    "olmo": "OLMo 1",
    "olmo2": "OLMo 2, 3",
    "olmoe": "OLMoE",
    "orion": "Orion",
    "paddleocr": "PaddleOCR-VL",
    "phi2": "Phi 1 to 2",
    "phi3": "Phi-3, Phi-4, Phi-4-mini",
    "qwen2": "Qwen 2, 2.5, InternVL 3",
    "qwen25vl": "Qwen 2.5-VL, Qwen2.5-Omni (also `qwen2vl`)",
    "qwen2moe": "Qwen 2 mixtures of experts",
    "qwen3": "Qwen 3, InternVL 3.5",
    "qwen35": "Qwen 3.5 to 3.8, MiniCPM-V 4.6",
    "qwen35moe": "Qwen 3.5 to 3.8 mixtures of experts",
    "qwen3moe": "Qwen 3 mixtures of experts",
    "qwen3next": "Qwen3-Next, Qwen3-Coder-Next",
    "qwen3vl": "Qwen3-VL, Qwen3-ASR",
    "qwen3vlmoe": "Qwen3-VL mixtures of experts, Qwen3-Omni",
    "refact": "Refact",
    "seed_oss": "Seed-OSS",
    "smollm3": "SmolLM3",
    "stablelm": "StableLM",
    "starcoder": "StarCoder, SantaCoder",
    "starcoder2": "StarCoder 2",
    "xverse": "XVERSE",
}
COLUMNS: dict[str, Callable[[str], bool]] = {
    "text, F32": lambda what: (
        what
        in (
            "F32, at once",
            "F32, in chunks of 7",
            "F32, token by token",
            "F32, short texts",
            "F32, fused attention",
            "F32, text with 0 pictures",
            "F32, embeddings",
        )
    ),
    "text, F16 cache": lambda what: what.startswith("F32, cache F16"),
    "text, Q8_0 weights": lambda what: what.startswith(("Q8_0", "MXFP4")),
    "images, F32": lambda what: what.startswith("F32") and "picture" in what,
    "sounds, F32": lambda what: what.startswith("F32") and "sound" in what,
}


def measure() -> list[Measured]:
    """Run the comparisons and return what they found."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "errors.json"
        command = [sys.executable, "-m", "pytest", "-q", "tests/parity", f"--errors={path}"]
        subprocess.run(command, cwd=ROOT, check=True)
        return [(str(a), str(b), float(c)) for a, b, c in json.loads(path.read_text())]


def table(measured: Iterable[Measured]) -> str:
    """Return the table: a row for each architecture with its largest errors."""
    rows = list(measured)
    lines = [
        f"| architecture | models | {' | '.join(COLUMNS)} |",
        f"|---|---|{'---|' * len(COLUMNS)}",
    ]
    for name, models in MODELS.items():
        errors = [error for _, error in _by_column([row for row in rows if row[0] == name])]
        lines.append(f"| `{name}` | {models} | {' | '.join(map(_shown, errors))} |")
    return "\n".join(lines)


def _by_column(rows: Sequence[Measured]) -> Iterable[tuple[str, float | None]]:
    for column, belongs in COLUMNS.items():
        yield column, max((error for _, what, error in rows if belongs(what)), default=None)


def _shown(error: float | None) -> str:
    return "" if error is None else f"{error:.0e}".replace("e-0", "e-")


def write(page: Path, text: str, begin: str = BEGIN) -> None:
    """Write the table between its marks."""
    old = page.read_text(encoding="utf-8")
    before, _, rest = old.partition(begin)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{begin}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write(PAGE, table(measure()))
