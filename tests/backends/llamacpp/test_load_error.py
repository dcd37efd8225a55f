"""A model that llama.cpp cannot load: the error says why in llama.cpp's words."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.endless import make_endless_model
from support.fork_server import FORK_SERVER
from support.renamed import write_renamed

from tampu.backends.llamacpp import load_llamacpp
from tampu.engine.load_options import LoadOptions
from tampu.errors import ModelFileError, TampuError, UnsupportedModelError

pytestmark = pytest.mark.server

STRANGE = "deci"  # llama.cpp has it; its tensors are Llama's


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("endless")
    return make_endless_model(folder, folder / "endless.gguf")


def load(path: Path) -> None:
    with load_llamacpp(path, LoadOptions(context=64, threads=1), FORK_SERVER):
        pass


def replaced(path: Path, destination: Path, old: bytes, new: bytes) -> Path:
    content = path.read_bytes()
    assert old in content
    assert len(old) == len(new)
    destination.write_bytes(content.replace(old, new, 1))
    return destination


def test_an_architecture_that_llama_cpp_does_not_have_is_named(path: Path, tmp_path: Path) -> None:
    unknown = write_renamed(path, tmp_path / "unknown.gguf", "mamba9")
    with pytest.raises(UnsupportedModelError) as caught:
        load(unknown)
    assert str(caught.value) == (
        "llama.cpp cannot load unknown.gguf: unknown model architecture: 'mamba9'"
    )


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"llama.embedding_length", b"llama.embedding_lengtx", "key not found in model: llama.em"),
        (b"blk.0.attn_q.weight", b"blk.0.attn_x.weight", "tensor 'blk.0.attn_q.weight' not found"),
    ],
)
def test_what_is_missing_in_a_file_is_named(
    path: Path, tmp_path: Path, old: bytes, new: bytes, reason: str
) -> None:
    damaged = replaced(path, tmp_path / "damaged.gguf", old, new)
    with pytest.raises(ModelFileError) as caught:
        load(damaged)
    assert str(caught.value).startswith("llama.cpp cannot load damaged.gguf: ")
    assert reason in str(caught.value)


def test_the_standard_error_is_as_before(
    path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    unknown = write_renamed(path, tmp_path / "unknown.gguf", "mamba9")
    with pytest.raises(TampuError):
        load(unknown)
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


def test_without_llama_cpp_the_error_says_how_to_install_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    install = r"pip install 'tampu\[llamacpp\]'"
    with pytest.raises(UnsupportedModelError, match=f"engine is not installed: {install}"):
        load(path)
    strange = write_renamed(path, tmp_path / "strange.gguf", STRANGE)
    with pytest.raises(UnsupportedModelError, match=f"'{STRANGE}'; llama.cpp may.*: {install}"):
        load(strange)
