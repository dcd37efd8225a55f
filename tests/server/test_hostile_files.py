"""Files that nobody should send: `POST /api/create` refuses each; one that goes bad is told."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import handmade_checkpoints as handmade
from support.fake_runner import FakeStart
from support.hostile import CASES, STRING, key, one_key, string
from support.tiny_gguf import write_gguf

from tampu.engine.load_options import LoadOptions
from tampu.errors import ModelFileError
from tampu.server.options import ServerOptions
from tampu.store.library import BUILT_IN
from tests.server.conftest import Site

pytestmark = pytest.mark.slow

SECRETS = re.compile(r"/tmp/|/home/|Traceback|0x[0-9a-f]{6}|sha256-")


@pytest.fixture
def own_site(tmp_path: Path) -> Site:
    return Site(tmp_path / "store", FakeStart(), ServerOptions(model=LoadOptions(context=1024)))


def digest_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def kept(site: Site) -> list[Any]:
    """What is in the store but for the blobs that were sent, which stay until they are swept."""
    return sorted(
        str(path.relative_to(site.folder))
        for path in site.folder.rglob("*")
        if path.is_file() and path.parent.name != "blobs" and path.name != "lock"
    )


def create(site: Site, files: dict[Any | str, Any], **more: dict[Any, Any]) -> Any:
    """Send files and have a model made of them; return the last answer."""
    sent = [("POST", f"/api/blobs/{digest_of(data)}", {"content": data}) for data in files.values()]
    body = {
        "model": "x",
        "files": {name: digest_of(data) for name, data in files.items()},
        "stream": False,
        **more,
    }
    return site.call(*sent, ("POST", "/api/create", {"json": body}))[-1]


def assert_refused(site: Site, response: Any, told: str, status: int = 400) -> None:
    assert response.status_code == status, response.text
    message = response.json()["error"]
    assert told in message
    assert message.isprintable()
    assert not SECRETS.search(message)
    assert kept(site) == []


# -- GGUF ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_hostile_file_cannot_be_created_as_a_model(own_site: Site, case: str) -> None:
    response = create(own_site, {"m.gguf": CASES[case].data})
    assert_refused(own_site, response, f"m.gguf: {CASES[case].field}")
    assert CASES[case].reason in response.json()["error"]


def test_create_refuses_files_that_cannot_run_alone(own_site: Site, tmp_path: Path) -> None:
    content = write_gguf(tmp_path / "m.gguf").read_bytes()
    for files in ({"README.md": b"x"}, {"m.gguf": content, "README.md": b"x"}):
        assert_refused(own_site, create(own_site, files), "or a checkpoint with its config.json")
    peft = {"adapter_config.json": b"{}", "adapter_model.safetensors": b""}
    assert_refused(own_site, create(own_site, peft), "this is an adapter: give it with ADAPTER")
    sees = one_key(key("general.architecture", STRING, string("clip")))
    assert_refused(own_site, create(own_site, {"mmproj.gguf": sees}), "none of the sources")
    lora = write_gguf(tmp_path / "a.gguf", general__type="adapter").read_bytes()
    assert_refused(
        own_site,
        create(own_site, {"lora.gguf": lora}),
        "lora.gguf: general.type: this is an adapter",
    )
    answer = create(own_site, {"m.gguf": content}, adapters={"m.gguf": digest_of(content)})
    assert_refused(own_site, answer, "m.gguf: general.type: this file is not an adapter")


def zeroed(content: Any) -> bytes:
    return bytes(len(content))


def cut(content: Any) -> Any:
    return content[:-5]


def longer(content: Any) -> Any:
    return content + b"x"


def another_version(content: Any) -> Any:
    return content[:4] + b"\x09" + content[5:]


def gone(_: object) -> None:
    return None


def damaged(site: Site, content: bytes, damage: Callable[[Any], Any]) -> None:
    """Have the file of a model in the store be harmed."""
    path = site.folder / "blobs" / digest_of(content).replace(":", "-")
    path.chmod(0o644)
    harmed = damage(content)
    if harmed is None:
        path.unlink()
    else:
        path.write_bytes(harmed)


ROUTES = {
    "show": ("/api/show", {"model": "x"}),
    "generate": ("/api/generate", {"model": "x", "prompt": "a", "stream": False}),
    "chat": ("/api/chat", {"model": "x", "messages": [], "stream": False}),
    "embed": ("/api/embed", {"model": "x", "input": "a"}),
    "create from it": ("/api/create", {"model": "y", "from": "x", "stream": False}),
    "quantise it": (
        "/api/create", {"model": "y", "from": "x", "quantize": "Q8_0", "stream": False}
    ),
    "openai": ("/v1/completions", {"model": "x", "prompt": "a"}),
    "anthropic": (
        "/v1/messages",
        {"model": "x", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", [zeroed, cut, longer, another_version, gone])
def test_file_damaged_later_is_reported_with_the_model_and_a_remedy(
    own_site: Site, tmp_path: Path, damage: Callable[[Any], Any]
) -> None:
    content = write_gguf(tmp_path / "m.gguf").read_bytes()
    assert create(own_site, {"m.gguf": content}).status_code == 200
    damaged(own_site, content, damage)
    answers = own_site.call(*(("POST", route, {"json": body}) for route, body in ROUTES.values()))
    for route, answer in zip(ROUTES, answers, strict=True):
        assert answer.status_code == 500, (route, answer.text)
        told = json.dumps(answer.json())
        assert "x:latest" in told, route
        assert re.search("is damaged|is missing|bytes, not", told), route
        assert re.search("pull or create", told), route
        assert str(tmp_path) not in told
    [tags, deleted, after] = own_site.call(
        ("GET", "/api/tags", {}),
        ("DELETE", "/api/delete", {"content": b'{"model":"x"}'}),
        ("POST", "/api/show", {"json": {"model": "x"}}),
    )
    listed = [model["name"] for model in tags.json()["models"]]
    assert listed == [f"{name}:latest" for name in BUILT_IN]
    assert (deleted.status_code, after.status_code) == (200, 404)


def test_model_found_damaged_at_load_is_named(own_site: Site, tmp_path: Path) -> None:
    content = write_gguf(tmp_path / "m.gguf").read_bytes()
    create(own_site, {"m.gguf": content})
    own_site.start.error = ModelFileError("tensor w", "holds NaN")
    [answer] = own_site.call(("POST", *ROUTES["generate"][:1], {"json": ROUTES["generate"][1]}))
    assert answer.status_code == 500
    assert answer.json()["error"].startswith(
        "the file of model x:latest is damaged: tensor w: holds NaN; run `tampu verify-store"
    )


# -- checkpoints -----------------------------------------------------------------------------------


def checkpoint(folder: Path, **changes: Any) -> dict[Any, Any]:
    """The files of a checkpoint; bytes take the place of a file, None takes it away."""
    folder = handmade.write(folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files |= changes
    return {name: data for name, data in files.items() if data is not None}


def safetensors(
    table: bytes | dict[Any, Any], data: bytes = b"1234", length: int | None = None
) -> bytes:
    head = table if isinstance(table, bytes) else json.dumps(table).encode()
    return struct.pack("<Q", len(head) if length is None else length) + head + data


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def entry(*offsets: int, dtype: str = "F32", shape: tuple[float, ...] = (1,)) -> dict[Any, Any]:
    return {"t": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


def config(**changes: dict[Any, Any]) -> bytes:
    return json.dumps(handmade.CONFIG | changes).encode()


def tokenizer(**changes: Any) -> bytes:
    return json.dumps(handmade.TOKENIZER | changes).encode()


def split(pattern: str) -> dict[Any, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}}


EMBEDDING = "model.embed_tokens.weight"
WEIGHTS = {
    "a header of no bytes": safetensors(b"", length=0),
    "a header of 7 bytes of 8": b"1234567",
    "a header of 101 MB": safetensors(b"{}", length=101 << 20),
    "a header beyond the file": safetensors(b"{}", length=5000),
    "a header of 2^63": safetensors(b"{}", length=2**63),
    "a header that is a list": safetensors(b"[1]"),
    "a header that is not UTF-8": safetensors(b'{"\xff":1}'),
    "a header nested 1,000 times": safetensors(b"[" * 1000),
    "metadata that is no texts": safetensors({"__metadata__": {"a": 1}}, b""),
    "the same tensor twice": safetensors(b'{"t":%b,"t":%b}' % ((json.dumps(ENTRY).encode(),) * 2)),
    "a type that is not known": safetensors(entry(0, 4, dtype="F31")),
    "a type in lower case": safetensors(entry(0, 4, dtype="f32")),
    "8 bits without scales": safetensors(entry(0, 4, dtype="F8_E5M2", shape=(4,))),
    "a negative dimension": safetensors(entry(0, 4, shape=(-1,))),
    "a dimension of 1.5": safetensors(entry(0, 4, shape=(1.5,))),
    "a shape of 2^80": safetensors(entry(0, 4, shape=(2**40, 2**40))),
    "a shape of 2^64 that wraps": safetensors(entry(0, 0, shape=(2**32, 2**32)), b""),
    "one offset": safetensors(entry(0)),
    "three offsets": safetensors(entry(0, 2, 4)),
    "the end before the beginning": safetensors(entry(4, 0)),
    "data beyond the file": safetensors(entry(0, 8, shape=(2,))),
    "bytes that no tensor has": safetensors(entry(0, 4), b"12345678"),
    "a hole": safetensors(entry(0, 4) | {"u": entry(8, 12)["t"]}, b"1" * 12),
    "an overlap": safetensors(entry(0, 4) | {"u": entry(2, 6)["t"]}, b"1" * 6),
    "an empty tensor inside another": safetensors(
        entry(0, 4) | {"u": entry(2, 2, shape=(0,))["t"]}
    ),
    "an embedding of no columns": safetensors(
        {EMBEDDING: entry(0, 0, shape=(10**12, 0))["t"]}, b""
    ),
    "an embedding that is one number": safetensors({EMBEDDING: entry(0, 4, shape=())["t"]}),
}
INDEXES = {
    "an index that leads out": b'{"weight_map":{"t":"../x.safetensors"}}',
    "an index with an absolute path": b'{"weight_map":{"t":"/etc/x.safetensors"}}',
    "an index with a pickle": b'{"weight_map":{"t":"a.bin"}}',
    "an index with a shard that is not there": b'{"weight_map":{"t":"b.safetensors"}}',
    "an index that is no JSON": b"{",
}
CONFIGS = {
    "no architecture": {"architectures": None},
    "architectures that are no list": {"architectures": "LlamaForCausalLM"},
    "an architecture that is a number": {"architectures": [5]},
    "-1 layers": {"num_hidden_layers": -1},
    "10^9 layers": {"num_hidden_layers": 10**9},
    "layers that are a text": {"num_hidden_layers": "12"},
    "1.5 layers": {"num_hidden_layers": 1.5},
    "a hidden size of 0": {"hidden_size": 0},
    "no heads": {"num_attention_heads": 0},
    "a head of 2^31": {"head_dim": 2**31 - 2, "rope_scaling": {"rope_type": "llama3"}},
    "heads that do not divide the rows": {"num_attention_heads": 3, "num_key_value_heads": 3},
    "a scaling that is not known": {"rope_scaling": {"type": "spiral", "factor": 2}},
    "a scaling by 10^300": {"rope_scaling": {"rope_type": "llama3", "factor": 1e300}},
    "an epsilon of NaN": {"rms_norm_eps": float("nan")},
    "an end that is no token": {"eos_token_id": 2**31},
}
TOKENIZERS = {
    "a kind of tokeniser that is not known": {"model": {"type": "Klingon"}},
    "an added token of -1": {"added_tokens": [{"id": -1, "content": "x"}]},
    "a lookbehind": {"pre_tokenizer": split("(?<=a)b")},
    "a pattern without end": {"pre_tokenizer": split("(a+)+$")},
    "a pattern that is none": {"pre_tokenizer": split("(")},
    "a pattern of 1 MB": {"pre_tokenizer": split("a" * 10**6)},
    "a step that is a number": {"pre_tokenizer": 5},
    "steps that are no list": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": 5}},
    "a decoder that is a text": {"decoder": "ByteLevel"},
}
SETTINGS = {
    "a template that is a number": b'{"chat_template":5}',
    "an id of 5,000 digits": b'{"added_tokens_decoder":{"%b":{"content":"x"}}}' % (b"9" * 5000),
}
DEEP = b'{"type":"Sequence","pretokenizers":['
OTHERS = {
    "a configuration that is a list": ("config.json", b"[]"),
    "a configuration nested 100,000 times": ("config.json", b"[" * 100_000),
    "a tokeniser that is no JSON": ("tokenizer.json", b"\x80\x02}"),
    "a sequence nested 10,000 times": (
        "tokenizer.json", b'{"pre_tokenizer":' + DEEP * 10_000 + b"]}" * 10_000 + b"}"
    ),
    "a length bomb of SentencePiece": ("tokenizer.model", b"\x0a\xff\xff\xff\xff\xff\xff\xff\x7f"),
}  # fmt: skip
TABLES: tuple[tuple[str, dict[str, Any], Callable[[Any], bytes]], ...] = (
    ("model.safetensors", WEIGHTS, bytes),
    ("model.safetensors.index.json", INDEXES, bytes),
    ("config.json", CONFIGS, lambda changes: config(**changes)),
    ("tokenizer.json", TOKENIZERS, lambda changes: tokenizer(**changes)),
    ("tokenizer_config.json", SETTINGS, bytes),
)
CHECKPOINTS = OTHERS | {
    case: (name, made(content)) for name, table, made in TABLES for case, content in table.items()
}


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_hostile_checkpoint_cannot_be_created_as_a_model(
    own_site: Site, tmp_path: Path, case: str
) -> None:
    name, content = CHECKPOINTS[case]
    changes = {name: content}
    if name == "tokenizer.model":
        changes["tokenizer.json"] = None
    if name == "model.safetensors.index.json":  # it is not read beside model.safetensors
        changes["model.safetensors"] = None
    response = create(own_site, checkpoint(tmp_path / "tiny", **changes))
    assert_refused(own_site, response, "")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt", "a.npy", "a.zip"])
def test_pickles_and_archives_are_refused_as_weights(
    own_site: Site, tmp_path: Path, name: str
) -> None:
    files = checkpoint(
        tmp_path / "tiny", **{"model.safetensors": None, name: b"\x80\x02cos\nsystem\n."}
    )
    assert_refused(own_site, create(own_site, files), "")


def test_valid_checkpoint_is_accepted(own_site: Site, tmp_path: Path) -> None:
    files = checkpoint(
        tmp_path / "tiny", **{"config.json": config(auto_map={"AutoModel": "x.Evil"})}
    )
    assert create(own_site, files).json() == {"status": "success"}
