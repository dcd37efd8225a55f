import math
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.errors import SettingsError
from tampu.settings.address import Address, parse_address
from tampu.settings.declaring import declared_settings
from tampu.settings.settings import Settings, runner_environment
from tools.models_table import END
from tools.settings_table import BEGIN, PAGE, table


def read(**environment: str) -> Settings:
    return Settings.from_environment({"HOME": "/home/runa", **environment})


def test_the_docs_have_the_table_of_the_declarations() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == table().strip()


def test_each_setting_is_declared_and_shown_under_its_name() -> None:
    declared = declared_settings(Settings)
    undeclared = {each.name for each in fields(Settings)} - declared.keys()
    assert undeclared == {"sources", "ignored"}
    names = [name for each in declared.values() for name in each.names]
    assert sorted(names) == sorted({*read().sources} - {"CONFIG"})


@pytest.mark.parametrize("name", ["MAX_RESPONSES_SIZE", "PREFIX_CACHE_MEMORY"])
def test_sizes_may_be_zero_where_that_means_none(name: str) -> None:
    assert read(**{f"TAMPU_{name}": "0"}).sources[name].value == 0


def test_empty_environment_gives_the_defaults() -> None:
    settings = read()
    assert settings == Settings(
        models=Path("/home/runa/.local/share/tampu/models"),
        cache=Path("/home/runa/.cache/tampu"),
        state=Path("/home/runa/.local/state/tampu"),
        ollama_models=Path("/home/runa/.ollama/models"),
        hub_cache=Path("/home/runa/.cache/huggingface/hub"),
        lm_studio=Path("/home/runa/.lmstudio/models"),
        registry_key=Path("/home/runa/.ollama/id_ed25519"),
    )
    assert str(settings.address) == "http://127.0.0.1:11434"
    assert (settings.keep_alive_s, settings.load_timeout_s, settings.max_queue) == (300, 300, 512)


@pytest.mark.parametrize(
    ("suffix", "text", "field", "value"),
    [
        ("HOST", "0.0.0.0", "address", Address("0.0.0.0")),
        ("CONTEXT_LENGTH", "8192", "context", 8192),
        ("CONTEXT_LENGTH", "0", "context", None),
        ("NUM_PARALLEL", "4", "slots", 4),
        ("NUM_PARALLEL", "0", "slots", None),
        ("NUM_PARALLEL", "auto", "slots", None),
        ("NUM_PARALLEL", "Auto", "slots", None),
        ("FLASH_ATTENTION", "1", "flash_attention", True),
        ("FLASH_ATTENTION", "False", "flash_attention", False),
        ("KV_CACHE_TYPE", "Q8_0", "cache_type", "q8_0"),
        ("KEEP_ALIVE", "10m", "keep_alive_s", 600.0),
        ("KEEP_ALIVE", "30", "keep_alive_s", 30.0),
        ("KEEP_ALIVE", "0", "keep_alive_s", 0.0),
        ("KEEP_ALIVE", "-1", "keep_alive_s", math.inf),
        ("KEEP_ALIVE", "-1m", "keep_alive_s", math.inf),
        ("LOAD_TIMEOUT", "90s", "load_timeout_s", 90.0),
        ("LOAD_TIMEOUT", "0", "load_timeout_s", None),
        ("MAX_LOADED_MODELS", "2", "max_loaded_models", 2),
        ("MAX_LOADED_MODELS", "0", "max_loaded_models", 0),
        ("MAX_QUEUE", "7", "max_queue", 7),
        ("NOHISTORY", "1", "no_history", True),
        ("ORIGINS", "https://a.example, app://b,", "origins", ("https://a.example", "app://b")),
        ("DEBUG", "1", "debug", 1),
        ("DEBUG", "true", "debug", 1),
        ("DEBUG", "2", "debug", 2),
        ("DEBUG", "0", "debug", 0),
    ],
)
def test_shared_settings_have_a_tampu_and_an_ollama_variable(
    suffix: str, text: str, field: str, value: object
) -> None:
    settings = read()
    assert getattr(read(**{f"OLLAMA_{suffix}": text}), field) == value
    assert getattr(read(**{f"TAMPU_{suffix}": text}), field) == value
    others = [
        name for name in Settings.__dataclass_fields__ if name not in (field, "sources", "ignored")
    ]
    changed = read(**{f"OLLAMA_{suffix}": text})
    assert [getattr(changed, name) for name in others] == [
        getattr(settings, name) for name in others
    ]


@pytest.mark.parametrize(
    ("suffix", "text", "field", "value"),
    [
        ("MODELS", "/models", "models", Path("/models")),
        ("REGISTRY", "Models.example:5000", "registry", "models.example:5000"),
        (
            "REALMS",
            "a.example=b.example, c=d:1",
            "realms",
            (("a.example", "b.example"), ("c", "d:1")),
        ),
        (
            "LOGINS",
            "A.example:5000=runa:p%2C=1, b=c:",
            "logins",
            (("a.example:5000", "runa:p,=1"), ("b", "c:")),
        ),
        ("CONNECTIONS", "3", "connections", 3),
        ("REGISTRY_KEY", "/key", "registry_key", Path("/key")),
        ("LM_STUDIO", "/mnt/models", "lm_studio", Path("/mnt/models")),
        ("LIMIT_RATE", "10MB", "limit_rate", 10_000_000),
        ("LIMIT_RATE", "1.5m", "limit_rate", 1_500_000),
        ("LIMIT_RATE", "700", "limit_rate", 700),
    ],
)
def test_settings_that_only_tampu_has(
    suffix: str,
    text: str,
    field: str,
    value: Path | str | tuple[tuple[str, str], tuple[str, str]] | int,
) -> None:
    assert getattr(read(**{f"TAMPU_{suffix}": text}), field) == value


def test_model_folders_of_other_programs_are_found() -> None:
    settings = read(OLLAMA_MODELS="/ollama", HF_HOME="/hf")
    assert settings.ollama_models == Path("/ollama")
    assert settings.models == Path("/home/runa/.local/share/tampu/models")
    assert settings.hub_cache == Path("/hf/hub")
    assert read(HF_HUB_CACHE="/hub", HF_HOME="/hf").hub_cache == Path("/hub")
    assert read(XDG_CACHE_HOME="/c").hub_cache == Path("/c/huggingface/hub")


def test_hub_token_is_hidden() -> None:
    settings = read(HF_TOKEN="secret", HF_ENDPOINT="http://127.0.0.1:1/")
    assert (settings.hub_token, settings.hub) == ("secret", "http://127.0.0.1:1")
    assert "secret" not in repr(settings)


def test_tampu_variable_overrides_ollama_variable() -> None:
    assert read(OLLAMA_MAX_QUEUE="1", TAMPU_MAX_QUEUE="2").max_queue == 2


def test_empty_variables_are_absent_and_quotes_are_stripped() -> None:
    assert read(TAMPU_MAX_QUEUE=" ", OLLAMA_MAX_QUEUE=" '9' ").max_queue == 9


def test_settings_that_only_tampu_has_ignore_ollama_variables() -> None:
    assert read(TAMPU_THREADS="3", OLLAMA_THREADS="5").threads == 3
    assert read(OLLAMA_THREADS="5").threads is None


def test_folders_follow_the_xdg_specification() -> None:
    settings = read(XDG_CACHE_HOME="/cache", XDG_DATA_HOME="/data")
    assert (settings.cache, settings.models) == (Path("/cache/tampu"), Path("/data/tampu/models"))
    assert read(XDG_CACHE_HOME="relative").cache == Path("/home/runa/.cache/tampu")
    assert read(TAMPU_CACHE="/fast").cache == Path("/fast")


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("TAMPU_MAX_QUEUE", "many", "whole number of 0 or more"),
        ("OLLAMA_NUM_PARALLEL", "-1", "whole number of 0 or more, or auto"),
        ("TAMPU_THREADS", "0", "whole number of 1 or more"),
        ("TAMPU_REGISTRY", "https://h", "a host name"),
        ("TAMPU_REALMS", "a", "registry=host"),
        ("TAMPU_LIMIT_RATE", "fast", "a number of bytes"),
        ("TAMPU_LIMIT_RATE", "0", "a number of bytes"),
        ("OLLAMA_CONTEXT_LENGTH", "4k", "whole number"),
        ("OLLAMA_FLASH_ATTENTION", "maybe", "true or false"),
        ("OLLAMA_DEBUG", "3", "true or false"),
        ("OLLAMA_KV_CACHE_TYPE", "q9", "one of f16, f32, q8_0, q4_0"),
        ("OLLAMA_KEEP_ALIVE", "soon", '"5m"'),
        ("OLLAMA_HOST", "x:y:z", "not a valid IPv6 address; expected host:port"),
        ("OLLAMA_HOST", "host:port", "from 0 to 65535"),
        ("OLLAMA_HOST", "host:65536", "from 0 to 65535"),
        ("OLLAMA_HOST", "ftp://host", "http or https"),
        ("OLLAMA_HOST", "user@host", "a name or an IP address"),
        ("OLLAMA_HOST", "[::1", "in brackets"),
        ("OLLAMA_HOST", "h/a?b=c", "the path is 'a\\?b=c'; expected names with slashes"),
        ("OLLAMA_HOST", "h/a//b", "the path is 'a//b'"),
        ("OLLAMA_HOST", "h/a b", "the path is 'a b'"),
        ("OLLAMA_HOST", "/run/t.sock", "a Unix socket is set with TAMPU_SOCKET"),
        ("OLLAMA_HOST", "unix:///run/t.sock", "a Unix socket is set with TAMPU_SOCKET"),
        ("TAMPU_HOST", "t.sock", "tampu serve --socket PATH"),
    ],
)
def test_invalid_value_names_the_variable_and_what_is_expected(
    variable: str, text: str, expected: str
) -> None:
    with pytest.raises(SettingsError, match=expected) as caught:
        read(**{variable: text})
    assert str(caught.value).startswith(f"{variable} is {text!r}: ")
    assert "\n" not in str(caught.value)


def test_misspelt_variable_is_refused_with_a_suggestion() -> None:
    with pytest.raises(
        SettingsError,
        match=r"TAMPU_KEEPALIVE in the environment is not a setting; did you mean TAMPU_KEEP_ALIVE",
    ):
        read(TAMPU_KEEPALIVE="5m")


def test_the_prefix_of_a_variable_resembles_nothing() -> None:
    with pytest.raises(SettingsError, match=r"^TAMPU_BOGUS .* is not a setting; known: .*, HOST,"):
        read(TAMPU_BOGUS="1")


def test_variables_of_other_programs_are_ignored() -> None:
    assert read(OLLAMA_WHATEVER="x", PATH="/bin") == read()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("example.org", "http://example.org:11434"),
        ("example.org:80", "http://example.org:80"),
        (":8080", "http://127.0.0.1:8080"),
        ("0.0.0.0:0", "http://0.0.0.0:0"),
        ("http://example.org", "http://example.org:80"),
        ("HTTPS://example.org/", "https://example.org:443"),
        ("http://example.org:1234/", "http://example.org:1234"),
        ("[::1]", "http://[::1]:11434"),
        ("[::1]:99", "http://[::1]:99"),
        ("::1", "http://[::1]:11434"),
        ("https://example.org/ollama", "https://example.org:443/ollama"),
        ("https://example.org/ollama/", "https://example.org:443/ollama"),
        ("http://example.org:1234/a/b-c", "http://example.org:1234/a/b-c"),
        ("example.org:1234/a", "http://example.org:1234/a"),
        ("[::1]:99/a", "http://[::1]:99/a"),
        (":8080/a", "http://127.0.0.1:8080/a"),
    ],
)
def test_addresses_are_parsed_like_ollama(text: str, address: str) -> None:
    assert str(parse_address(text)) == address


@given(st.text(":/[]@.x1 h", max_size=12))
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        address = parse_address(text)
    except ValueError:
        return
    assert parse_address(str(address)) == address


def test_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MAX_QUEUE", "3")
    assert Settings.from_environment().max_queue == 3


def test_worker_environment_has_no_secrets() -> None:
    given = {"PATH": "/bin", "HF_TOKEN": "x", "CUDA_VISIBLE_DEVICES": "1", "GGML_BACKEND_PATH": "/"}
    kept = runner_environment(given)
    assert kept["PATH"] == "/bin"
    assert kept["CUDA_VISIBLE_DEVICES"] == "1"
    assert kept["GGML_NO_BACKTRACE"] == "1"
    assert not kept.keys() & {"HF_TOKEN", "GGML_BACKEND_PATH"}


def test_worker_environment_has_the_variables_of_drivers() -> None:
    given = {
        "GGML_VK_VISIBLE_DEVICES": "0,0", "GGML_VK_DISABLE_F16": "1", "VK_DRIVER_FILES": "/a.json",
        "VK_ICD_FILENAMES": "/a.json", "MESA_SHADER_CACHE_DIR": "/c", "XDG_CACHE_HOME": "/c",
        "RADV_PERFTEST": "1", "HSA_OVERRIDE_GFX_VERSION": "10.3.0", "ROCR_VISIBLE_DEVICES": "0",
    }  # fmt: skip
    assert given.items() <= runner_environment(given).items()


def test_kernels_setting() -> None:
    assert read(TAMPU_KERNELS="Attention").kernels == "attention"
    assert read(TAMPU_POOLING="None").pooling == "none"
    with pytest.raises(SettingsError, match="one of on, off, products, experts, attention"):
        read(TAMPU_KERNELS="fast")


def test_fetch_setting_is_auto_or_a_way() -> None:
    assert read().fetch == "auto"
    assert read(TAMPU_FETCH="T0:1024:8").fetch == "t0:1024:8"
    assert read(TAMPU_CACHE="/c").tuning == Path("/c/tuning")
    for wrong in ("fast", "t0", "t0:1024:17", "t4:1024:8"):
        with pytest.raises(SettingsError, match=r"TAMPU_FETCH .* such as t0:1024:8"):
            read(TAMPU_FETCH=wrong)


def test_repack_cache_setting_limits_the_packed_weights() -> None:
    assert read().packed_weights is None
    assert read(TAMPU_REPACK_CACHE="off").packed_weights is None
    assert read(TAMPU_REPACK_CACHE="0").packed_weights is None
    found = read(TAMPU_REPACK_CACHE="20GB", TAMPU_CACHE="/c")
    assert found.packed_weights == ("/c/packed", 20 * 10**9)
    assert read(TAMPU_REPACK_CACHE="on").repack_cache == 32 * 10**9
    with pytest.raises(SettingsError, match="bytes, such as 20GB, or on or off"):
        read(TAMPU_REPACK_CACHE="much")


def test_prefix_cache_setting_limits_the_rows_on_disk() -> None:
    assert read().kept_rows is None
    assert read(TAMPU_PREFIX_CACHE="off").kept_rows is None
    found = read(TAMPU_PREFIX_CACHE="20GB", TAMPU_CACHE="/c")
    assert found.kept_rows == ("/c/prefix", 20 * 10**9)
    with pytest.raises(SettingsError, match="bytes, such as 20GB, or on or off"):
        read(TAMPU_PREFIX_CACHE="much")


def test_the_prefix_cache_in_memory_is_off_and_takes_a_size() -> None:
    assert read().prefix_cache_memory == 0
    assert read(TAMPU_PREFIX_CACHE_MEMORY="2GB").prefix_cache_memory == 2 * 10**9


@pytest.mark.seed("S75")
def test_device_settings() -> None:
    plain = read()
    assert (plain.gpu_layers, plain.main_gpu, plain.tensor_split) == (None, None, None)
    found = read(TAMPU_NUM_GPU="12", TAMPU_MAIN_GPU="1", TAMPU_TENSOR_SPLIT="3, 1.5")
    assert (found.gpu_layers, found.main_gpu, found.tensor_split) == (12, 1, (3.0, 1.5))
    assert read(TAMPU_NUM_GPU="-1").gpu_layers is None
    assert (read().spec_type, read(TAMPU_SPEC_TYPE="none").spec_type) == ("auto", "none")
    assert (read().n_cpu_moe, read(TAMPU_N_CPU_MOE="4").n_cpu_moe) == (0, 4)


@pytest.mark.parametrize(
    ("name", "text"),
    [("NUM_GPU", "-2"), ("NUM_GPU", "all"), ("MAIN_GPU", "-1"), ("N_CPU_MOE", "-1"),
     ("TENSOR_SPLIT", "1;2"),
     ("TENSOR_SPLIT", "0,0"), ("TENSOR_SPLIT", "1,-1"), ("TENSOR_SPLIT", "nan")],
)  # fmt: skip
def test_invalid_device_settings_are_refused(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"TAMPU_{name}"):
        read(**{f"TAMPU_{name}": text})
