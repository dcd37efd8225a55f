"""From a file to an engine: what is refused and how, and that nothing is left behind."""

import gc
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import psutil
import pytest
from support.tiny_model import VOCABULARY, Tiny, tiny_weights, write_tiny

from tampu.engine.engine import Engine
from tampu.errors import (
    LoadCancelledError,
    ModelFileError,
    ModelNotFoundError,
    OutOfMemoryError,
    RequestError,
    TampuError,
    UnsupportedModelError,
)
from tampu.ml import Backend
from tampu.ml.library import gg

SMALL: dict[str, Any] = {"context": 32, "threads": 1, "batch": 16}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tiny.gguf"


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever is allocated on the device is freed again."""
    live = set()
    alloc, free = gg.ggml_backend_buft_alloc_buffer, gg.ggml_backend_buffer_free

    def counted(kind: Any, size: int) -> Any:
        buffer = alloc(kind, size)
        live.add(buffer)
        return buffer

    monkeypatch.setattr(gg, "ggml_backend_buft_alloc_buffer", counted)
    monkeypatch.setattr(
        gg, "ggml_backend_buffer_free", lambda buffer: (live.discard(buffer), free(buffer))
    )
    contexts = set()
    init, done = gg.ggml_init, gg.ggml_free

    def opened(parameters: Any) -> Any:
        arena = init(parameters)
        contexts.add(arena)
        return arena

    monkeypatch.setattr(gg, "ggml_init", opened)
    monkeypatch.setattr(gg, "ggml_free", lambda arena: (contexts.discard(arena), done(arena)))
    yield
    assert live == set()
    assert contexts == set()


def load(path: Path, **options: Any) -> Engine:
    return Engine.load(path, **{**SMALL, **options})


def refused(error: Any, match: str | None, path: Path, **options: Any) -> str:
    """Load a file that cannot be loaded; return the message."""
    with pytest.raises(error, match=match) as caught:
        load(path, **options).close()
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What loads


@pytest.mark.parametrize("type_", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_weights_of_all_types_load_and_generate(path: Path, type_: str) -> None:
    write_tiny(path, Tiny(embedding=64), types={"q.weight": type_, "ffn_up.weight": type_})
    with load(path) as engine:
        assert len(engine.generate("the", max_tokens=3, temperature=0).tokens) == 3


@pytest.mark.seed("S83")
def test_a_model_with_k_quants_generates(path: Path) -> None:
    tiny = Tiny(embedding=256, heads=16, feed_forward=256, layers=1)
    names = ("attn_q", "attn_k", "ffn_gate", "ffn_up", "output")
    types = {f"{name}.weight": "Q4_K" for name in names}
    write_tiny(path, tiny, types={**types, "ffn_down.weight": "Q6_K", "token_embd.weight": "Q6_K"})
    with load(path) as engine:
        found = engine.logits("the cat")
        assert found.shape == (len(engine.tokenize("the cat")), VOCABULARY)
        assert np.isfinite(found).all()


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
@pytest.mark.seed("S3")
def test_every_architecture_loads_and_generates(path: Path, architecture: str) -> None:
    write_tiny(path, Tiny(architecture=architecture, biases=architecture == "qwen2"))
    with load(path) as engine:
        assert engine.info.architecture == architecture
        assert len(engine.generate("the", max_tokens=5, temperature=0).tokens) <= 5


@pytest.mark.seed("S72", "S73", "S74")
@pytest.mark.parametrize("cache_type", ["f32", "f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("flash_attention", [None, True, False])
def test_attention_and_cache_are_chosen_at_loading(
    path: Path, cache_type: str, flash_attention: bool | None
) -> None:
    write_tiny(path, Tiny(head_dim=32))
    options = {"cache_type": cache_type, "flash_attention": flash_attention}
    if cache_type.startswith("q") and flash_attention is False:
        refused(RequestError, "needs flash attention", path, **options)
        return
    with load(path, **options) as engine:
        assert np.isfinite(engine.logits("the cat")).all()


@pytest.mark.seed("S75", "S76")
def test_an_engine_reports_what_it_has_loaded(path: Path) -> None:
    write_tiny(path, Tiny(context=777))
    with load(path, context=40) as engine:
        assert engine.context == 40
        assert engine.info.context == 777
        assert engine.info.embedding_length == 32
        assert engine.info.parameters == sum(w.size for w in tiny_weights(Tiny()).values())
        assert engine.template is None
        assert engine.load_ns > 0


def test_progress_only_grows_and_ends_at_one(path: Path) -> None:
    write_tiny(path, types={"attn_q.weight": "Q4_0"})
    seen: list[Any] = []
    load(path, progress=seen.append).close()
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


# Files that cannot be loaded


def test_a_missing_file_is_named(path: Path) -> None:
    message = refused(ModelNotFoundError, "no such file", path)
    assert str(path) in message


def test_a_folder_is_refused(tmp_path: Path) -> None:
    refused(ModelNotFoundError, "is a folder", tmp_path)


@pytest.mark.parametrize(
    "data", [b"", b"GGUF", b"Once upon a time there was a text file.\n" * 9, b"\0" * 4096]
)
def test_a_file_that_is_not_a_model_is_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    refused(ModelFileError, None, path)


@pytest.mark.parametrize("part", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(path: Path, part: float) -> None:
    write_tiny(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    refused(ModelFileError, None, path)


def test_an_unknown_architecture_is_named(path: Path) -> None:
    write_tiny(path, Tiny(architecture="none-such"))
    refused(UnsupportedModelError, "architecture 'none-such' is not known", path)


def test_a_missing_tensor_is_named(path: Path) -> None:
    weights = tiny_weights(Tiny())
    del weights["blk.1.attn_v.weight"]
    write_tiny(path, weights=weights)
    refused(ModelFileError, r"missing from the file: blk\.1\.attn_v\.weight", path)


def test_an_unused_tensor_is_named(path: Path) -> None:
    weights = tiny_weights(Tiny())
    weights["blk.0.attn_z.weight"] = weights["output_norm.weight"]
    write_tiny(path, weights=weights)
    refused(ModelFileError, r"blk\.0\.attn_z\.weight", path)


@pytest.mark.parametrize("name", ["token_embd.weight", "output.weight"])
@pytest.mark.parametrize("rows", [VOCABULARY // 2, VOCABULARY - 1, VOCABULARY + 8])
def test_embeddings_of_another_vocabulary_size_are_refused(
    path: Path, name: str, rows: int
) -> None:
    weights = tiny_weights(Tiny())
    weights[name] = np.resize(weights[name], (rows, 32))
    write_tiny(path, weights=weights)
    reason = f"tensor {name}: has {rows} rows for {VOCABULARY} tokens"
    assert refused(ModelFileError, None, path) == reason


@pytest.mark.parametrize("key", ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.bos_token_id"])
def test_a_special_token_outside_the_vocabulary_is_refused(path: Path, key: str) -> None:
    write_tiny(path, template="{{ messages }}")
    data = path.read_bytes()
    place = data.index(key.encode()) + len(key) + 4
    path.write_bytes(data[:place] + (99999).to_bytes(4, "little") + data[place + 4 :])
    refused(ModelFileError, re.escape(key), path)


# Options


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("context", 3, "an integer from 4 to"), ("context", -1, "an integer from 4 to"),
        ("slots", 0, "from 1 to 1024"), ("slots", 2000, "from 1 to 1024"),
        ("threads", -1, "an integer from 1 to 512"), ("batch", 65537, "an integer from 1 to 65536"),
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused_with_the_range(
    path: Path, option: str, value: int, allowed: str
) -> None:
    write_tiny(path)
    refused(RequestError, f"{option} must be {allowed}.*not {value}", path, **{option: value})


def test_an_unknown_cache_type_is_refused_with_the_known_ones(path: Path) -> None:
    write_tiny(path)
    refused(RequestError, "'q5_9' is unknown; known: f16, f32", path, cache_type="q5_9")


def test_a_cache_type_that_does_not_fit_the_heads_is_refused(path: Path) -> None:
    write_tiny(path)
    with pytest.raises(TampuError, match="heads of 16 features do not fill Q8_0"):
        load(path, cache_type="q8_0")


# Memory


@pytest.mark.seed("S41")
def test_a_context_that_does_not_fit_is_refused_with_the_numbers(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny(path, Tiny(context=2**31 - 1))
    monkeypatch.setattr(Backend, "available_memory", staticmethod(lambda: 2**30))
    message = refused(OutOfMemoryError, None, path, context=10**8, slots=2)
    assert message.startswith(
        f"{path.name} with a context of 100000000 tokens in 2 slots does not fit on CPU.0: "
        "weights 1 MiB, cache 47.7 GiB, graphs about 1 MiB; 1.0 GiB are available. "
        "Choose a context of at most "
    )
    fitting = int(message.rpartition(" ")[2])
    assert 0.9 < fitting * 2 * 256 / 2**30 < 1
    load(path, context=1024, slots=2).close()


@pytest.mark.seed("S41")
def test_what_would_fit_instead_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny(path, Tiny(head_dim=32))
    monkeypatch.setattr(Backend, "available_memory", staticmethod(lambda: 30 * 2**20))
    message = refused(OutOfMemoryError, None, path, context=40960, slots=2)
    assert "or the cache type q8_0" in message
    assert message.endswith("or fewer slots")


@pytest.mark.seed("S41")
def test_weights_that_do_not_fit_are_refused_whatever_the_context(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny(path)
    monkeypatch.setattr(Backend, "available_memory", staticmethod(lambda: 100))
    refused(OutOfMemoryError, "1 MiB are available. Choose a smaller model", path)
    refused(OutOfMemoryError, None, path, cache_type="f8")


@pytest.mark.seed("S6", "S41")
@pytest.mark.parametrize("allowed", range(6))
def test_memory_that_runs_out_at_any_moment_of_loading_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    write_tiny(path, Tiny(embedding=64), types={"attn_q.weight": "Q4_0"})
    real, count = gg.ggml_backend_buft_alloc_buffer, []

    def alloc(kind: Any, size: int) -> None:
        if size:
            count.append(size)
        return None if len(count) > allowed and size else real(kind, size)

    monkeypatch.setattr(gg, "ggml_backend_buft_alloc_buffer", alloc)
    try:
        load(path).close()
    except OutOfMemoryError as error:
        message = str(error)
    else:
        message = "" if len(count) <= allowed else "loaded without memory"
    assert message == "" or message.startswith("no memory")


@pytest.mark.seed("S41")
@pytest.mark.parametrize(
    "function", ["ggml_backend_sched_reserve", "ggml_backend_dev_buffer_from_host_ptr"]
)
def test_ggml_refusing_memory_ends_the_load_and_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    write_tiny(path)
    monkeypatch.setattr(gg, function, lambda *_: None)
    with pytest.raises(OutOfMemoryError):
        load(path)


# Giving up


@pytest.mark.parametrize("asked", [0, 1, 2])
def test_a_load_can_be_cancelled_and_leaves_nothing(path: Path, asked: int) -> None:
    write_tiny(path, Tiny(embedding=64), types={"attn_q.weight": "Q4_0", "attn_k.weight": "Q4_0"})
    times = []

    def cancelled() -> bool:
        times.append(1)
        return len(times) > asked

    with pytest.raises(LoadCancelledError):
        load(path, cancelled=cancelled)


def test_an_error_in_the_callers_progress_leaves_nothing(path: Path) -> None:
    write_tiny(path)

    def progress(_part: object) -> NoReturn:
        raise KeyError("the caller's own")

    with pytest.raises(KeyError, match="the caller's own"):
        load(path, progress=progress)


# Again and again


@pytest.mark.slow
@pytest.mark.seed("S40")
def test_loading_and_closing_ten_times_leaks_neither_memory_nor_threads(path: Path) -> None:
    write_tiny(path, Tiny(embedding=64, context=4096), types={"attn_q.weight": "Q4_0"})
    process, sizes = psutil.Process(), []
    before = threading.active_count()
    for _ in range(12):
        with load(path, context=8192) as engine:  # 8 MiB of cache
            engine.generate("the", max_tokens=2)
        gc.collect()
        sizes.append(process.memory_info().rss)
    assert threading.active_count() <= before  # a thread of an earlier test may have ended
    assert sizes[-1] - sizes[3] < 24 * 2**20  # eight caches would be 64 MiB; malloc keeps some


@pytest.mark.slow
def test_failing_to_load_ten_times_leaks_no_threads(path: Path) -> None:
    write_tiny(path, Tiny(keys={"rope.dimension_count": 3}))
    before = threading.active_count()
    for _ in range(10):
        with pytest.raises(ModelFileError):
            load(path)
    assert threading.active_count() <= before  # a thread of an earlier test may have ended


def test_two_engines_on_one_file_do_not_disturb_each_other(path: Path) -> None:
    write_tiny(path)
    with load(path) as first, load(path, flash_attention=True, cache_type="f32") as second:
        expected = first.generate("the cat", max_tokens=5, temperature=0).tokens
        assert second.generate("the cat", max_tokens=5, temperature=0).tokens == expected
        first.close()
        assert second.generate("the cat", max_tokens=5, temperature=0).tokens == expected


@pytest.mark.parametrize(
    "key", ["attention.head_count", "attention.head_count_kv", "feed_forward_length"]
)
def test_a_key_with_the_same_number_for_each_layer_computes_the_same(path: Path, key: str) -> None:
    tiny = Tiny()
    number = {"attention.head_count": tiny.heads, "attention.head_count_kv": tiny.kv_heads,
              "feed_forward_length": tiny.feed_forward}[key]  # fmt: skip
    with Engine.load(write_tiny(path, tiny), **SMALL) as engine:
        expected = engine.logits([1, 2, 3])
    write_tiny(path, Tiny(keys={key: [number] * tiny.layers}))
    with Engine.load(path, **SMALL) as engine:
        assert np.array_equal(engine.logits([1, 2, 3]), expected)
