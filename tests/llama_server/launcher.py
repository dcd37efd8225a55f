"""`llama-server` for its own tests: takes its options, and becomes `tampu serve`.

Options that tampu has no equivalent of are ignored; the tests of what they do fail.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

TAMPU = (sys.executable, "-m", "tampu.cli.entry")
CONTEXT = 8192
MARKS = ("<PRE>", "<SUF>", "<MID>")
# A word that is one token, as in the vocabulary of its tests' model.
HELLO = ("hel", "hell", "hello", "▁hello")
# llama-server has one model and ignores the name in a request; these are the names in its tests.
NAMES = (
    "test", "davinci-002", "gpt-3.5-turbo", "gpt-3.5-turbo-instruct", "gpt-4.1",
    "text-embedding-3-small", "dummy",
)  # fmt: skip
# Its default lets every web page in, which TAMPU_ORIGINS cannot say; these are those of its tests.
PAGES = ("localhost", "web.mydomain.fr", "origin")
# The template that it has under the name of command-r.
COMMAND_R = """\
{%- for message in messages -%}
<|START_OF_TURN_TOKEN|><|{{ message.role | upper }}_TOKEN|>{{ message.content -}}
<|END_OF_TURN_TOKEN|>
{%- endfor -%}
<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"""


def parse(words: list[str]) -> argparse.Namespace:
    """Return the options that mean something here."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--host", "--api-key", "--hf-repo", "--hf-file", "--n-predict", "--seed",
                 "--temp", "--pooling", "--sleep-idle-seconds", "--cors-origins",
                 "--tools", "--chat-template"):  # fmt: skip
        parser.add_argument(name)
    parser.add_argument("--alias", default="tiny")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ctx-size", type=int, default=CONTEXT)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--kv-unified", action="store_true")
    parser.add_argument("--embedding", action="store_true")
    return parser.parse_known_args(words)[0]


def write_text_model(path: Path, template: str | None) -> Path:
    """Write a model with random weights that says words, hardly ever its end."""
    # Most starts find the file, and need none of this.
    from support.chat_templates import CHATML
    from support.tiny_model import FIRST_BYTE, SPACE, VOCABULARY, Tiny, tiny_weights, write_tiny

    size = VOCABULARY + len(MARKS)
    tiny = Tiny(context=CONTEXT, vocabulary=size)
    weights = tiny_weights(tiny)
    weights["output.weight"][:SPACE] = 0  # the other tokens' logits are far from 0
    weights["output.weight"][VOCABULARY:] = 0
    marks = {
        f"tokenizer.ggml.fim_{name}_token_id": VOCABULARY + place
        for place, name in enumerate(("pre", "suf", "mid"))
    }
    assert SPACE > FIRST_BYTE
    return write_tiny(
        path, tiny, weights=weights, template=template or CHATML, pieces=MARKS, metadata=marks
    )


def write_embedder(path: Path) -> Path:
    """Write an embedding model with random weights: its texts begin and end with a token."""
    from support.tiny_model import VOCABULARY, Tiny, write_tiny

    tiny = Tiny(context=CONTEXT, vocabulary=VOCABULARY + len(HELLO))
    end = {"tokenizer.ggml.add_eos_token": True}
    return write_tiny(path, tiny, pooling=1, pieces=HELLO, metadata=end)


def write_model(folder: Path, options: argparse.Namespace) -> Path:
    """Return a model file of the kind that a test asks for; it is written once."""
    template = COMMAND_R if options.chat_template == "command-r" else None
    kind = "embedder" if options.embedding or options.pooling else "text"
    path = folder / f"{kind}{'-command-r' if template else ''}.gguf"
    if not path.exists():
        new = folder / f"{kind}-{os.getpid()}.gguf"
        if kind == "text":
            write_text_model(new, template)
        else:
            write_embedder(new)
        new.rename(path)
    return path


def prepare(folder: Path, options: argparse.Namespace) -> Path:
    """Return a folder of models with the model under its names, and its parameters."""
    path = write_model(folder, options)
    # Random weights would reason before they answer in a form.
    lines = [f"FROM {path}", "PARSER passthrough", f"PARAMETER seed {options.seed}"]
    lines.append(f"PARAMETER temperature {options.temp}")
    if options.batch_size:
        lines.append(f"PARAMETER num_batch {options.batch_size}")
    if options.n_predict:
        lines.append(f"PARAMETER num_predict {options.n_predict}")
    alias = options.alias.split(",")[0]
    text = "\n".join(lines)
    modified = path.stat().st_mtime_ns  # in a copy of this folder the models must be made again
    key = hashlib.sha256(f"{text}\n{alias}\n{modified}".encode()).hexdigest()[:16]
    models = folder / key
    if not models.exists():
        new = folder / f"{key}-{os.getpid()}"
        new.mkdir()
        (new / "Modelfile").write_text(text)
        environment = {"PATH": os.defpath, "HOME": str(folder), "TAMPU_MODELS": str(new)}
        command = [*TAMPU, "create", alias, "--in-place", "--file", str(new / "Modelfile")]
        subprocess.run(command, env=environment, check=True)
        [manifest] = new.rglob(f"manifests/*/*/{alias}")
        for name in NAMES:
            if name != alias:
                shutil.copytree(manifest, manifest.parent / name)
        new.rename(models)
    return models


def main() -> None:
    """Serve."""
    options = parse(sys.argv[1:])
    folder = Path(__file__).parents[2] / "build" / "llama-server"
    folder.mkdir(parents=True, exist_ok=True)
    models = prepare(folder, options)
    slots = 1 if options.kv_unified else options.parallel
    environment = {
        "PATH": os.defpath,
        "HOME": str(folder),
        "TAMPU_MODELS": str(models),
        "TAMPU_DEFAULT_MODEL": options.alias.split(",")[0],
        "TAMPU_CONTEXT_LENGTH": str(options.ctx_size // slots),
        "TAMPU_NUM_PARALLEL": str(options.parallel),
        "TAMPU_MAX_REPEATED_TOKENS": "0",
        "TAMPU_REGISTRY": "127.0.0.1:1",
        "TAMPU_THREADS": "1",
    }
    if not options.cors_origins and not options.tools:
        environment["TAMPU_ORIGINS"] = ",".join(PAGES)
    if options.api_key:
        environment["TAMPU_API_KEY"] = options.api_key
    if options.pooling:
        environment["TAMPU_POOLING"] = options.pooling
    if options.sleep_idle_seconds:
        environment["TAMPU_KEEP_ALIVE"] = f"{options.sleep_idle_seconds}s"
    host = options.host or "127.0.0.1"
    command = [*TAMPU, "serve", "--host", host, "--port", str(options.port)]
    os.execve(command[0], command, environment)


if __name__ == "__main__":
    main()
