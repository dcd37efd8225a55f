"""Names and digests: what is allowed, and that nothing else can be made."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.errors import ModelNameError
from tampu.store.layout import Layout
from tampu.store.names import Digest, ModelName

HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "full", "short"),
    [
        ("llama3", "registry.ollama.ai/library/llama3:latest", "llama3:latest"),
        ("llama3.2:1B", "registry.ollama.ai/library/llama3.2:1B", "llama3.2:1B"),
        ("runa/m", "registry.ollama.ai/runa/m:latest", "runa/m:latest"),
        ("hf.co/runa/m-GGUF:Q4_K_M", "hf.co/runa/m-GGUF:Q4_K_M", "hf.co/runa/m-GGUF:Q4_K_M"),
        ("localhost:5000/a/b", "localhost:5000/a/b:latest", "localhost:5000/a/b:latest"),
        ("https://h/a/b:c", "h/a/b:c", "h/a/b:c"),
        ("ollama.com/library/m", "ollama.com/library/m:latest", "m:latest"),
    ],
)
def test_missing_parts_get_their_defaults(text: str, full: str, short: str) -> None:
    name = ModelName.parse(text)
    assert (str(name), name.short) == (full, short)
    assert ModelName.parse(str(name)) == name == ModelName.parse(name.short)


def test_names_compare_without_case_and_scheme() -> None:
    assert ModelName.parse("http://H.example/A/b:C") == ModelName.parse("h.example/a/B:c")
    assert hash(ModelName.parse("M")) == hash(ModelName.parse("m:LATEST"))
    assert ModelName.parse("m:a") != ModelName.parse("m:b")
    assert ModelName.parse("ollama.com/library/m") == ModelName.parse("m")
    assert ModelName.parse("http://h/a/b").scheme == "http"


@pytest.mark.parametrize(
    "text",
    [
        "", ":", "m:", ":t", "/m", "a//b", "a:b:c", "a/b/c/d", "../x", "./x", "..", ".m", "-m",
        "a/../b", "m:../t", "..%2f", "%2e%2e%2f", "a\\b", "a b", "a\0b", "a\nb", "m\n", "ｍ", "m²",
        "a.b/m", "user:pass@host/a/b", "h:0/a/b", "h:65536/a/b", "h:x/a/b", "[::1]/a/b",
        "ftp://h/a/b", "://m", "m" * 81, "m:" + "t" * 81, "n" * 81 + "/m", "h" * 351 + "/a/b",
        "h@/a/b", "~/m", "a?b", "m#x",
    ],
)  # fmt: skip
def test_invalid_names_are_refused(text: str) -> None:
    with pytest.raises(ModelNameError) as caught:
        ModelName.parse(text)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=40) | st.text("aB._-:/%\\ \0~", max_size=12))
def test_any_text_is_a_name_inside_the_store_or_refused(text: str) -> None:
    try:
        name = ModelName.parse(text)
    except ModelNameError:
        return
    root = Path("/store")
    path = Layout(root).manifest(name)
    assert Path(*path.parts) == path
    assert path.is_relative_to(root / "manifests")
    assert len(path.relative_to(root).parts) == 5
    assert ".." not in path.parts
    assert ModelName.parse(str(name)) == name


def test_a_name_that_is_too_long_says_so() -> None:
    with pytest.raises(ModelNameError, match=r"its model 'a+' is longer than 80 characters$"):
        ModelName.parse("a" * 81)


@given(st.text(max_size=80) | st.text("0123456789abcdef:", max_size=80) | st.just(HEX))
def test_any_text_is_a_digest_or_refused(text: str) -> None:
    try:
        digest = Digest(text)
    except ModelNameError:
        return
    assert len(digest.hex) == 64
    assert set(digest.hex) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    "text",
    [
        "", "sha256", "sha256:", "sha256-", f"sha256-{HEX}", f"sha512:{HEX}", f"sha256:{HEX[:-1]}",
        f"sha256:{HEX}0", "sha256:" + HEX.upper(), "sha256:../../etc/passwd", "sha256:" + "٣" * 64,
        f"sha256:{HEX[:-1]}\0", f"sha256:{HEX}\n", f" sha256:{HEX}", f"sha256:sha256:{HEX}",
    ],
)  # fmt: skip
def test_invalid_digests_are_refused(text: str) -> None:
    with pytest.raises(ModelNameError):
        Digest.parse(text)


def test_a_digest_has_two_spellings() -> None:
    digest = Digest.parse("sha256:" + HEX)
    assert str(digest) == "sha256:" + HEX
    assert digest.file_name == "sha256-" + HEX
    assert digest.short == HEX[:12]
    assert Digest.parse_file_name(digest.file_name) == digest == Digest.parse_file_name(str(digest))
    with pytest.raises(ModelNameError):
        Digest.parse_file_name("sha256-" + HEX + "-partial")


def test_the_digest_of_bytes_is_their_sha256() -> None:
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert Digest.of(b"").hex == empty


def test_the_manifest_of_a_name_has_four_folders() -> None:
    path = ModelName.parse("h:1/a/b:c").relative_path
    assert path == PurePosixPath("h:1/a/b/c")
