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
    "bert": "BERT, DistilBERT, RoBERTa, XLM-RoBERTa: BGE, E5, MiniLM, for embeddings and ranking",
    "eurobert": "EuroBERT",
    "gemma-embedding": "EmbeddingGemma",
    "gemma-embedding2": "EmbeddingGemma 2, text",
    "gemma2": "Gemma 2",
    "gemma3": "Gemma 3, text and vision",
    "gemma4": "Gemma 4, text and vision",
    "gpt-oss": "gpt-oss (also `gptoss`)",
    "jina-bert-v2": "Jina Embeddings v2",
    "jina-bert-v3": "Jina Embeddings v3",
    "lfm2": "LFM2",
    "llama": "Llama 1 to 3.3, Mistral, Mixtral, LLaVA 1.5",
    "llama4": "Llama 4, text and vision",
    "mistral3": "Mistral Small 3, Ministral 3, with Pixtral's vision encoder",
    "mllama": "Llama 3.2 Vision",
    "modern-bert": "ModernBERT, Granite Embedding R2, GTE-ModernBERT, mmBERT",
    "neo-bert": "NeoBERT",
    "nomic-bert": "Nomic Embed v1, v1.5",
    "nomic-bert-moe": "Nomic Embed v2",
    "qwen2": "Qwen 2, 2.5",
    "qwen25vl": "Qwen 2.5-VL (also `qwen2vl`)",
    "qwen2moe": "Qwen 2 mixtures of experts",
    "qwen3": "Qwen 3",
    "qwen35": "Qwen 3.5 to 3.8",
    "qwen35moe": "Qwen 3.5 to 3.8 mixtures of experts",
    "qwen3moe": "Qwen 3 mixtures of experts",
    "qwen3next": "Qwen3-Next, Qwen3-Coder-Next",
    "qwen3vl": "Qwen3-VL",
    "qwen3vlmoe": "Qwen3-VL mixtures of experts",
    "smollm3": "SmolLM3",
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
