"""The settings: the only module that reads the environment, into an immutable object.

Each setting has a variable of its own name, `TAMPU_...`; where Ollama has one for the same thing
it works too, so that a machine set up for Ollama needs no other setup. tampu's variable overrides
Ollama's, and both override the configuration file (`tampu.settings.config_file`). An empty variable
counts as absent. An invalid value or an unknown `TAMPU_...` variable is an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tampu.settings.address import Address, parse_address
from tampu.settings.choices import LOG_FORMATS
from tampu.settings.declaring import declared_settings, folder, optional, own, shared
from tampu.settings.model_settings import ModelSettings
from tampu.settings.parsers import (
    boolean,
    log_level,
    one_of,
    path_of,
    seconds,
    seconds_if_positive,
)
from tampu.settings.reader import THEIRS, Reader, Source
from tampu.settings.remote_settings import RemoteSettings
from tampu.settings.server_settings import ServerSettings

# The variables that a model's process gets: paths and those of devices' drivers, but none of the
# keys and tokens that the server may have been started with.
_PASSED_ON = frozenset({
    "DRI_PRIME", "DYLD_LIBRARY_PATH", "GPU_DEVICE_ORDINAL", "HOME", "LANG", "LC_ALL",
    "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "PATH", "PYTHONPATH", "TMPDIR", "TZ", "VIRTUAL_ENV",
    "XDG_CACHE_HOME", "XDG_CONFIG_DIRS", "XDG_DATA_DIRS", "XDG_DATA_HOME",  # of Vulkan's drivers
})  # fmt: skip
_DRIVERS = (
    *("GGML_CUDA_", "GGML_METAL_", "GGML_SYCL_", "GGML_VK_"),
    *("CUDA_", "NVIDIA_", "__GL_", "HIP_", "HSA_", "ROCR_", "ONEAPI_", "SYCL_", "ZE_"),
    *("VK_", "MESA_", "ANV_", "RADV_", "AMD_", "LP_", "GALLIUM_", "GALLIVM_"),
)


# fmt: off
@dataclass(frozen=True, kw_only=True)
class PlaceSettings:
    """Where the server listens, where files are, and what it logs."""

    address: Address = shared(
        "HOST", parse_address, "127.0.0.1:11434",
        "where the server listens; commands take one with a path, as behind a proxy "
        "(`https://example.org/ollama`)")
    socket: Path | None = optional(
        "SOCKET", path_of,
        "a Unix socket to listen on instead of an address (`tampu serve --socket PATH`, or `--host "
        "PATH`); only its owner can connect, under any host name")
    tls_certificate: Path | None = optional(
        "TLS_CERT", path_of, "a certificate file; with it the server uses HTTPS")
    tls_key: Path | None = optional("TLS_KEY", path_of, "the file of the certificate's key")
    keys_file: Path | None = optional(
        "KEYS_FILE", path_of, "a file of [keys with names and limits](#keys-with-limits)")
    mcp_file: Path | None = optional(
        "MCP_FILE", path_of, "a file of [MCP servers](mcp.md) whose tools requests may use")
    models: Path = folder(
        "MODELS", "tampu's folder of models, which it writes to",
        ("XDG_DATA_HOME", "tampu/models"), ("", ".local/share/tampu/models"), is_required=True)
    ollama_models: Path | None = folder(
        "OLLAMA_MODELS",
        "Ollama's store, read-only: to have tampu write there, set `TAMPU_MODELS` to it",
        ("", ".ollama/models"), is_foreign=True)
    hub_cache: Path | None = folder(
        "HF_HUB_CACHE", "Hugging Face's cache, read-only; by default in `HF_HOME`",
        ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub"), ("", ".cache/huggingface/hub"),
        is_foreign=True)
    lm_studio: Path | None = folder(
        "LM_STUDIO", "LM Studio's folder of models, read-only", ("", ".lmstudio/models"))
    cache: Path = folder(
        "CACHE", "the folder of caches",
        ("XDG_CACHE_HOME", "tampu"), ("", ".cache/tampu"), is_required=True)
    state: Path = folder(
        "STATE", "the folder of uploaded files, batches, stored responses and usage",
        ("XDG_STATE_HOME", "tampu"), ("", ".local/state/tampu"), is_required=True)
    load_timeout_s: float | None = shared(
        "LOAD_TIMEOUT", seconds_if_positive, "5m",
        "loading fails after this time without progress")
    hang_s: float = own(
        "HANG_TIMEOUT", seconds, "60s",
        "a model's process is killed after this time without progress")
    log_format: str = own(
        "LOG_FORMAT", one_of(LOG_FORMATS), "text", "format of log lines: text or json")
    debug: int = shared("DEBUG", log_level, "0", "log level, 0 to 2; higher logs more")
    editor: str | None = optional(
        "EDITOR", str, "the editor that Ctrl-G opens in `tampu run`; unset: `VISUAL` or `EDITOR`",
        is_shared=True)
    no_history: bool = shared(
        "NOHISTORY", boolean, "0", "whether `tampu run` saves no history of its input")
# fmt: on


@dataclass(frozen=True, kw_only=True)
class Settings(PlaceSettings, ServerSettings, ModelSettings, RemoteSettings):
    """All settings.

    Attributes:
        sources: the value of each setting and its source, by the variable's name.
        ignored: Ollama's variables that are set and have no effect here.
    """

    sources: Mapping[str, Source] = field(default_factory=dict, repr=False, compare=False)
    ignored: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @property
    def packed_weights(self) -> tuple[str, int] | None:
        """The folder of packed weights and its maximum bytes; None: none are kept."""
        return (str(self.cache / "packed"), self.repack_cache) if self.repack_cache else None

    @property
    def kept_rows(self) -> tuple[str, int] | None:
        """The folder of the prefix cache and its maximum bytes; None: nothing is kept on disk."""
        return (str(self.cache / "prefix"), self.prefix_cache) if self.prefix_cache else None

    @property
    def tuning(self) -> Path:
        """The folder of measurements of this machine."""
        return self.cache / "tuning"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the variables of this process, or of `environment`, and the configuration file.

        The file is that of CONFIG, else tampu/tampu.toml in XDG_CONFIG_HOME, if it exists.

        Raises:
            SettingsError: an invalid value or file, or an unknown variable or name.
        """
        declared = declared_settings(cls)
        every = [(name, each) for each in declared.values() for name in each.names]
        reader = Reader(
            os.environ if environment is None else environment,
            [name for name, each in every if not each.is_foreign],
        )
        values: dict[str, Any] = {name: each.read(reader) for name, each in declared.items()}
        known = {name if each.is_foreign else THEIRS + name for name, each in every
                 if each.is_foreign or each.is_shared}  # fmt: skip
        return cls(**values, sources=reader.sources, ignored=reader.ignored(known))


def variable(name: str) -> str | None:
    """Return a variable that the configuration names, for a program that it starts."""
    return os.environ.get(name)


def runner_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the complete environment of a process that runs a model."""
    given = os.environ if environment is None else environment
    kept = {
        name: value
        for name, value in given.items()
        if name in _PASSED_ON or name.startswith(_DRIVERS)
    }
    return kept | {"GGML_NO_BACKTRACE": "1", "PYTHONUNBUFFERED": "1"}


def disable_backtraces() -> None:
    """Keep ggml, which this process loads, from starting a debugger when it ends the process."""
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")


def disable_usage_reports() -> None:
    """Keep Ray, which this process starts, from reporting to its makers how it is used."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
