"""The settings: the only module that reads the environment, into an immutable object.

Each setting has a variable of its own name, `TAMPU_...`; where Ollama has one for the same thing
it works too, so that a machine set up for Ollama needs no other setup. tampu's variable overrides
Ollama's, and both override the configuration file (`tampu.settings.config_file`). An empty variable
counts as absent. An invalid value or an unknown `TAMPU_...` variable is an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Self, TypeVar

from tampu.errors import SettingsError
from tampu.settings.address import Address, parse_address
from tampu.settings.config_file import read_configuration
from tampu.settings.declaring import SECRET, VARIABLE, Source, Variable, own, shared
from tampu.settings.parsers import (
    boolean,
    count_from,
    count_or_auto,
    count_unless_zero,
    fetch_way,
    host,
    image_hosts,
    layers,
    log_level,
    logins,
    near_name,
    one_of,
    parse_rate,
    path_of,
    realms,
    seconds,
    seconds_if_positive,
    seconds_unless_negative,
    shares,
    size_or_off,
    texts,
    urls,
)
from tampu.settings.proxies import Proxies, parse_proxy, shown_proxy

T = TypeVar("T")

DEFAULT_CONTEXT = 4096  # tokens, where neither a setting nor the model says otherwise
DEFAULT_STATE_CACHE = 512 * 10**6  # bytes
POOLINGS = ("none", "mean", "cls", "last")
CACHE_TYPES = ("f16", "f32", "q8_0", "q4_0")
KERNELS = (
    *("on", "off", "products", "experts", "attention", "recurrence"),
    *("amx", "avx512bf16", "avx512", "avxvnni", "avx2", "i8mm", "neon", "portable"),
)

_OURS = "TAMPU_"
_THEIRS = "OLLAMA_"
ENGINES = ("auto", "native", "llamacpp")
LOG_FORMATS = ("text", "json")
_CONFIG = "CONFIG"
_PLACES = ("MODELS", "CACHE", "STATE", "REGISTRY_KEY", "LM_STUDIO")  # from several sources
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings; after each one, the name of its variable.

    Attributes:
        address: HOST, "host", "host:port", ":port" or "scheme://host:port".
        models: MODELS, tampu's own folder of models, which it writes to.
        ollama_models: OLLAMA_MODELS, else ~/.ollama/models: Ollama's, only read. To have tampu
            write there, set TAMPU_MODELS to it.
        hub_cache: HF_HUB_CACHE, else HF_HOME/hub, else Hugging Face's default; only read.
        lm_studio: LM_STUDIO, else ~/.lmstudio/models: LM Studio's folder of models, only read.
        cache: CACHE, the folder for caches; else XDG_CACHE_HOME/tampu.
        state: STATE, the folder of uploaded files, batches and usage; else XDG_STATE_HOME/tampu.
        context: CONTEXT_LENGTH in tokens; None lets the model and the memory decide.
        slots: NUM_PARALLEL, concurrent requests per model, each with a whole context; None: up to
            8, which share the cells of one.
        threads: THREADS, CPU threads; None: one per core.
        gpu_layers: NUM_GPU, how many of the last layers go to GPUs; None (-1): as many as fit.
        main_gpu: MAIN_GPU, the device that gets layers first; None: the one with most free memory.
        tensor_split: TENSOR_SPLIT, the share of the layers for each device, such as 3,1.
        n_cpu_moe: N_CPU_MOE, of how many of the first layers the experts stay on the CPU.
        kv_offload: KV_OFFLOAD, whether keys and values are on the GPUs of their layers.
        flash_attention: FLASH_ATTENTION; None lets the model decide.
        kernels: KERNELS, which of tampu's C kernels are used: on (all), off, products, experts,
            attention or recurrence (that alone), or a level such as avx512; a CPU without it uses
            its fastest.
        repack_cache: REPACK_CACHE, the maximum bytes of packed weights kept in `cache` for the next
            start, such as 20GB, or on for 32GB; 0: none.
        prefix_cache: PREFIX_CACHE, the maximum bytes of computed prompts kept in `cache`, for later
            requests, also after a restart, such as 20GB; 0 (off): none.
        prefix_cache_memory: PREFIX_CACHE_MEMORY, the maximum bytes of them that each model keeps in
            memory where `prefix_cache` is off.
        fetch: FETCH, how weights are prefetched from memory: auto measures the fastest way and
            keeps it in `cache`; else a hint, bytes ahead and streams, such as t0:1024:8.
        cache_type: KV_CACHE_TYPE, the element type of cached keys and values.
        pooling: POOLING, how the vectors of a text's tokens become its embedding: none, mean, cls
            (the first token's) or last; None: as the model's file says.
        state_cache: STATE_CACHE, bytes of the states that a model with recurrent layers keeps of
            its conversations, to resume from, such as 2GB.
        keep_alive_s: KEEP_ALIVE, how long an idle model stays loaded; None: forever. A number
            without a unit is in seconds.
        load_timeout_s: LOAD_TIMEOUT, the limit for loading without progress; None: none.
        max_loaded_models: MAX_LOADED_MODELS; None (0) lets the memory decide.
        max_queue: MAX_QUEUE, the maximum number of waiting requests.
        max_file_bytes: MAX_FILE_SIZE, the maximum size of an uploaded file, such as 200MB.
        max_files_bytes: MAX_FILES_SIZE, bytes of all files; no more are uploaded beyond it.
        max_files: MAX_FILES, the maximum number of files.
        max_responses_bytes: MAX_RESPONSES_SIZE, bytes of responses kept for later ones; 0: none.
        image_urls: IMAGE_URLS, from where images are fetched that requests name by address: on
            (any public host), hosts separated by commas (private ones too), or both.
        tool_urls: TOOL_URLS, separated by commas: the URLs to which `POST /api/tools/call` sends
            calls of tools.
        default_model: DEFAULT_MODEL, for requests that name none (Ollama's API requires one); None:
            that of `tampu serve --model`, else the only one that can answer.
        editor: EDITOR, the editor that Ctrl-G opens in `tampu run`; None: that of the variables
            VISUAL or EDITOR.
        no_history: NOHISTORY, whether `tampu run` keeps no history of its input.
        origins: ORIGINS, separated by commas: web origins that may call the server, besides local.
        debug: DEBUG, the log level, 0 to 2; higher logs more.
        registry: REGISTRY, the registry of models whose name has no host.
        registries: REGISTRIES, separated by commas: registry hosts that clients on other machines
            may name, besides those in these settings and the hub.
        realms: REALMS, "registry=host" separated by commas: other hosts that may issue tokens for
            a registry, such as registry-1.docker.io=auth.docker.io.
        logins: LOGINS, "registry=name:password" separated by commas, for registries with a login.
        proxies: HTTP_PROXY, HTTPS_PROXY and NO_PROXY, for downloads and uploads.
        connections: CONNECTIONS, concurrent connections of a download.
        limit_rate: LIMIT_RATE, the maximum bytes per second for downloads and uploads, such as
            10MB; None: no limit.
        registry_key: REGISTRY_KEY, else ~/.ollama/id_ed25519: the key for Ollama's registry.
        hub: HF_ENDPOINT, Hugging Face's hub.
        hub_token: HF_TOKEN, for private models there.
        otlp_endpoint: OTEL_EXPORTER_OTLP_ENDPOINT, an OpenTelemetry collector's URL, for traces.
        api_keys: API_KEY, separated by commas: keys with all permissions.
        use_api_keys: USE_API_KEY, likewise: may use models, but not pull, create or delete them.
        keys_file: KEYS_FILE, a TOML file of keys with names and limits.
        mcp_file: MCP_FILE, a TOML file of MCP servers whose tools requests may name.
        tls_certificate: TLS_CERT, a file; with it the server uses HTTPS.
        tls_key: TLS_KEY, the file of the certificate's key.
        socket: SOCKET, the path of a Unix socket to listen on instead of an address.
        log_format: LOG_FORMAT, text or json.
        slot_save_path: SLOT_SAVE_PATH, the folder in which `POST /slots` saves conversations.
        adapters: ADAPTERS, the folder of the adapters that may be loaded while the server runs.
        memory: MEMORY, bytes for all loaded models together, such as 16GB; None: free memory.
        engine: ENGINE, native, llamacpp for llama.cpp, or auto: the first that supports the model.
        drain_s: DRAIN_TIMEOUT, how long requests may continue when the server shuts down.
        max_crashes: MAX_CRASHES, how often a model may crash within a minute; 0: no limit.
        max_repeated_tokens: MAX_REPEATED_TOKENS, how often a token may repeat before an answer
            without `max_tokens` ends; 0: no limit.
        truncate: TRUNCATE, whether prompts longer than the context are cut unless a request says
            otherwise; None: by Ollama's API, not by OpenAI's and Anthropic's.
        hang_s: HANG_TIMEOUT, after which a model's process that does not respond is killed.
        sources: the value of each setting and its source, by the variable's name.
        ignored: Ollama's variables that are set and have no effect here.
    """

    address: Address = shared("HOST", parse_address, Address(), "127.0.0.1:11434")
    models: Path
    cache: Path
    state: Path
    context: int | None = shared("CONTEXT_LENGTH", count_unless_zero, None, str(DEFAULT_CONTEXT))
    slots: int | None = shared("NUM_PARALLEL", count_or_auto, None, "auto")
    threads: int | None = own("THREADS", count_from(1), None, "one per core")
    gpu_layers: int | None = own("NUM_GPU", layers, None, "as many as fit")
    main_gpu: int | None = own("MAIN_GPU", count_from(0), None, "most free memory")
    tensor_split: tuple[float, ...] = own("TENSOR_SPLIT", shares, (), "by free memory")
    n_cpu_moe: int = own("N_CPU_MOE", count_from(0), 0)
    kv_offload: bool = own("KV_OFFLOAD", boolean, default=True, text="1")
    flash_attention: bool | None = shared("FLASH_ATTENTION", boolean, None, "auto")
    kernels: str = own("KERNELS", one_of(KERNELS), "on")
    repack_cache: int = own("REPACK_CACHE", size_or_off, 0, "off")
    prefix_cache: int = own("PREFIX_CACHE", size_or_off, 0, "off")
    prefix_cache_memory: int = own("PREFIX_CACHE_MEMORY", parse_rate, 0)
    fetch: str = own("FETCH", fetch_way, "auto")
    cache_type: str = shared("KV_CACHE_TYPE", one_of(CACHE_TYPES), "f16")
    pooling: str | None = own("POOLING", one_of(POOLINGS), None, "the model's")
    state_cache: int = own("STATE_CACHE", parse_rate, DEFAULT_STATE_CACHE, "512MB")
    keep_alive_s: float | None = shared("KEEP_ALIVE", seconds_unless_negative, 300.0, "5m")
    load_timeout_s: float | None = shared("LOAD_TIMEOUT", seconds_if_positive, 300.0, "5m")
    max_loaded_models: int | None = shared("MAX_LOADED_MODELS", count_unless_zero, None, "3")
    max_queue: int = shared("MAX_QUEUE", count_from(0), 512)
    max_file_bytes: int = own("MAX_FILE_SIZE", parse_rate, 200 * 10**6, "200MB")
    max_files_bytes: int = own("MAX_FILES_SIZE", parse_rate, 10 * 10**9, "10GB")
    max_files: int = own("MAX_FILES", count_from(0), 1000)
    max_responses_bytes: int = own("MAX_RESPONSES_SIZE", parse_rate, 10**9, "1GB")
    image_urls: tuple[str, ...] = own("IMAGE_URLS", image_hosts, (), "off")
    tool_urls: tuple[str, ...] = own("TOOL_URLS", urls, (), "off")
    default_model: str | None = own("DEFAULT_MODEL", str, None)
    editor: str | None = shared("EDITOR", str, None)
    no_history: bool = shared("NOHISTORY", boolean, default=False, text="0")
    origins: tuple[str, ...] = shared("ORIGINS", texts, ())
    debug: int = shared("DEBUG", log_level, 0)
    ollama_models: Path | None = None
    hub_cache: Path | None = None
    lm_studio: Path | None = None
    registry: str = own("REGISTRY", host, "registry.ollama.ai")
    registries: tuple[str, ...] = own("REGISTRIES", texts, ())
    realms: tuple[tuple[str, str], ...] = own("REALMS", realms, ())
    logins: tuple[tuple[str, str], ...] = own("LOGINS", logins, ())
    proxies: Proxies = field(default_factory=Proxies)
    connections: int = own("CONNECTIONS", count_from(1), 8)
    limit_rate: int | None = own("LIMIT_RATE", parse_rate, None)
    registry_key: Path | None = None
    hub: str = "https://huggingface.co"
    hub_token: str | None = field(default=None, repr=False)
    otlp_endpoint: str | None = None
    api_keys: tuple[str, ...] = own("API_KEY", texts, ())
    use_api_keys: tuple[str, ...] = own("USE_API_KEY", texts, ())
    keys_file: Path | None = own("KEYS_FILE", path_of, None)
    mcp_file: Path | None = own("MCP_FILE", path_of, None)
    tls_certificate: Path | None = own("TLS_CERT", path_of, None)
    tls_key: Path | None = own("TLS_KEY", path_of, None)
    socket: Path | None = own("SOCKET", path_of, None)
    log_format: str = own("LOG_FORMAT", one_of(LOG_FORMATS), "text")
    slot_save_path: Path | None = own("SLOT_SAVE_PATH", path_of, None)
    adapters: Path | None = own("ADAPTERS", path_of, None)
    memory: int | None = own("MEMORY", parse_rate, None, "free memory")
    engine: str = own("ENGINE", one_of(ENGINES), "auto")
    drain_s: float = own("DRAIN_TIMEOUT", seconds, 30.0, "30s")
    hang_s: float = own("HANG_TIMEOUT", seconds, 60.0, "60s")
    max_crashes: int = own("MAX_CRASHES", count_from(0), 3)
    max_repeated_tokens: int = own("MAX_REPEATED_TOKENS", count_from(0), 30)
    truncate: bool | None = own("TRUNCATE", boolean, None)
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
        read = _Reader(os.environ if environment is None else environment)
        read.refuse_unknown()
        read.open_file()
        declared = {
            name: read.value(each.name, each.parse, each.default, each.text)
            for name, each in _declared().items()
        }
        return cls(
            **declared,
            models=read.folder("MODELS", "XDG_DATA_HOME", ".local/share", "models"),
            cache=read.folder("CACHE", "XDG_CACHE_HOME", ".cache", ""),
            state=read.folder("STATE", "XDG_STATE_HOME", ".local/state", ""),
            ollama_models=read.in_home(
                "OLLAMA_MODELS", ("OLLAMA_MODELS", ""), ("", ".ollama/models")
            ),
            hub_cache=read.in_home(
                "HF_HUB_CACHE",
                ("HF_HUB_CACHE", ""),
                ("HF_HOME", "hub"),
                ("XDG_CACHE_HOME", "huggingface/hub"),
                ("", ".cache/huggingface/hub"),
            ),
            lm_studio=read.value("LM_STUDIO", path_of, None)
            or read.in_home("LM_STUDIO", ("", ".lmstudio/models")),
            proxies=read.proxies(),
            registry_key=read.value("REGISTRY_KEY", path_of, None)
            or read.in_home("REGISTRY_KEY", ("", ".ollama/id_ed25519")),
            hub=str(read.text("HF_ENDPOINT", "https://huggingface.co")).rstrip("/"),
            hub_token=read.text("HF_TOKEN"),
            otlp_endpoint=read.text("OTEL_EXPORTER_OTLP_ENDPOINT"),
            sources=read.sources,
            ignored=read.ignored,
        )


def _declared() -> dict[str, Variable]:
    """Return the variable of each setting that is declared with one, by the setting's name."""
    return {
        each.name: each.metadata[VARIABLE] for each in fields(Settings) if VARIABLE in each.metadata
    }


class _Reader:
    """Takes values from the environment or a file, and reports where an invalid one came from."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._path: Path | None = None
        self._file: Mapping[str, str] = {}
        self._shared = {each.name for each in _declared().values() if each.is_shared}
        self._known = {*_PLACES, *(each.name for each in _declared().values())}
        self.sources: dict[str, Source] = {}

    def open_file(self) -> None:
        """Read the configuration file; its values apply where no variable is set."""
        chosen = self.value(_CONFIG, path_of, None)
        folder = Path(self._text("XDG_CONFIG_HOME"))
        if chosen is None and not folder.is_absolute():
            folder = self._home() / ".config"
        path = chosen or folder / "tampu" / "tampu.toml"
        if chosen is not None or path.is_file():
            self._file = read_configuration(path, sorted(self._known))
            self._path = path

    def refuse_unknown(self) -> None:
        known = sorted((*self._known, _CONFIG))
        for variable in sorted(self._environment):
            name = variable.removeprefix(_OURS)
            if name != variable and name not in known:
                near = near_name(name, known)  # of the names alone: all begin with the prefix
                hint = f"did you mean {_OURS}{near}?" if near else f"known: {', '.join(known)}"
                raise SettingsError(f"{variable} in the environment is not a setting; {hint}")

    def value(
        self, name: str, parse: Callable[[str], T], default: T, shown: str | None = None
    ) -> T:
        prefixes = (_OURS, _THEIRS) if name in self._shared else (_OURS,)
        texts = [(prefix + name, self._text(prefix + name)) for prefix in prefixes]
        texts.append((f"{self._path}: {name.lower()}", self._file.get(name, "")))
        value, origin = default, "default"
        for place, text in texts:
            if text:
                try:
                    value, origin, shown = parse(text), place, text
                except ValueError as error:
                    shown = "..." if name in SECRET else repr(text)
                    raise SettingsError(f"{place} is {shown}: {error}") from error
                break
        self.sources[name] = Source(value, origin, shown)
        return value

    def folder(self, name: str, base: str, base_in_home: str, inside: str) -> Path:
        """Return the folder of the variable, else `inside` of tampu's own folder in `base`."""
        chosen = self.value(name, path_of, None)
        if chosen is not None:
            return chosen
        parent = Path(self._text(base))
        if not parent.is_absolute():  # the XDG specification: a relative one is ignored
            parent = self._home() / base_in_home
        found = parent / "tampu" / inside
        self.sources[name] = Source(found, "default")
        return found

    def in_home(self, name: str, *places: tuple[str, str]) -> Path:
        """Return the first variable that is set, joined with its part, else the last in HOME."""
        given = [place for place in places[:-1] if self._text(place[0])]
        if given:
            variable, below = given[0]
            found, origin = Path(self._text(variable)).expanduser() / below, variable
        else:
            found, origin = self._home() / places[-1][1], "default"
        self.sources[name] = Source(found, origin)
        return found

    def text(self, variable: str, default: str | None = None) -> str | None:
        """Return a variable of another program; the default if it is absent or empty."""
        given = self._text(variable)
        self.sources[variable] = Source(given or default, variable if given else "default")
        return given or default

    def proxies(self) -> Proxies:
        """Return the proxies; their variables are used in upper and in lower case."""
        variable, names = self._either("NO_PROXY")
        self.sources["NO_PROXY"] = Source(texts(names), variable if names else "default")
        return Proxies(self._proxy("HTTP_PROXY"), self._proxy("HTTPS_PROXY"), texts(names))

    def _proxy(self, name: str) -> str | None:
        variable, text = self._either(name)
        try:
            url = parse_proxy(text) if text else None
        except ValueError as error:
            raise SettingsError(f"{variable}: {error}") from error
        self.sources[name] = Source(shown_proxy(url), variable if url else "default")
        return url

    def _either(self, name: str) -> tuple[str, str]:
        variable = name if self._text(name) else name.lower()
        return variable, self._text(variable)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Ollama's variables that are set and have no effect here."""
        known = {_THEIRS + name for name in (*self._shared, "MODELS")}
        return tuple(
            name
            for name in sorted(self._environment)
            if name.startswith(_THEIRS) and name not in known and self._text(name)
        )

    def _home(self) -> Path:
        try:
            return Path(self._text("HOME") or Path.home())
        except RuntimeError as error:
            raise SettingsError("the home folder is unknown: set HOME, or all folders") from error

    def _text(self, variable: str) -> str:
        return self._environment.get(variable, "").strip().strip("\"'").strip()


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
