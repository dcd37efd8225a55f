"""The settings of a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tampu.settings.declaring import foreign, optional, own, shared
from tampu.settings.parsers import (
    boolean,
    count_from,
    image_hosts,
    parse_rate,
    path_of,
    seconds,
    seconds_or_forever,
    size,
    texts,
    urls,
)


# fmt: off
@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What a server does with requests; `tampu.server.app.ServerOptions` has them too."""

    api_keys: tuple[str, ...] = own(
        "API_KEY", texts, "", "keys with all permissions, separated by commas", is_secret=True)
    use_api_keys: tuple[str, ...] = own(
        "USE_API_KEY", texts, "",
        "keys that may use models, but not pull, create, copy or delete them", is_secret=True)
    origins: tuple[str, ...] = shared(
        "ORIGINS", texts, "", "origins of web pages that may call the server, besides local ones")
    keep_alive_s: float = shared(
        "KEEP_ALIVE", seconds_or_forever, "5m",
        "how long an idle model stays loaded; negative: forever")
    max_loaded_models: int = shared(
        "MAX_LOADED_MODELS", count_from(0), "3", "maximum number of loaded models; 0: the default")
    memory: int | None = optional(
        "MEMORY", parse_rate, "bytes that all loaded models may use together, such as 16GB",
        default="free memory")
    max_queue: int = shared("MAX_QUEUE", count_from(0), "512", "maximum number of waiting requests")
    max_file_bytes: int = own(
        "MAX_FILE_SIZE", parse_rate, "200MB", "maximum size of an [uploaded file](api.md#batches)")
    max_files_bytes: int = own(
        "MAX_FILES_SIZE", parse_rate, "10GB",
        "total size of all files; further uploads are refused")
    max_files: int = own("MAX_FILES", count_from(0), "1000", "maximum number of files")
    max_responses_bytes: int = own(
        "MAX_RESPONSES_SIZE", size, "1GB",
        "maximum size of [stored responses](api.md#responses-that-are-kept), and separately of "
        "[conversations](api.md#conversations); 0: none")
    max_capture_bytes: int = own(
        "MAX_CAPTURE_SIZE", size, "0",
        "maximum size of the [values inside the model](api.md#values-inside-the-model) that one "
        "response returns, such as 16MB; 0: requests that ask for them are refused")
    image_urls: tuple[str, ...] = own(
        "IMAGE_URLS", image_hosts, "off",
        "hosts from which image URLs in requests are fetched, separated by commas; they may be in "
        "a private network. `on`: any public host")
    tool_urls: tuple[str, ...] = own(
        "TOOL_URLS", urls, "off",
        "URLs to which [tool calls](api.md#tools-answered-by-a-url) are sent, separated by commas: "
        "exactly these; their hosts may be in a private network")
    default_model: str | None = optional(
        "DEFAULT_MODEL", str,
        "the model for requests that name none (except in Ollama's API); if unset, "
        "[the only model](api.md#requests-without-a-model)")
    max_repeated_tokens: int = own(
        "MAX_REPEATED_TOKENS", count_from(0), "30",
        "an answer without a limit (`num_predict`, `max_tokens`) ends with the reason `length` "
        "when one token repeats more often than this; 0: no limit")
    truncate: bool | None = optional(
        "TRUNCATE", boolean,
        "whether [prompts longer than the context](api.md#prompts-that-are-too-long) are cut "
        "unless a request says otherwise: 1 or 0; by default Ollama's API cuts them, OpenAI's and "
        "Anthropic's refuse them")
    max_crashes: int = own(
        "MAX_CRASHES", count_from(0), "3",
        "a model that crashes this often within a minute is not reloaded until that minute is "
        "over; 0: no limit")
    drain_s: float = own(
        "DRAIN_TIMEOUT", seconds, "30s",
        "how long running requests may continue when the server shuts down")
    slot_save_path: Path | None = optional(
        "SLOT_SAVE_PATH", path_of,
        "the folder where `POST /slots` saves conversations, as in llama-server; also "
        "`--slot-save-path`")
    adapters: Path | None = optional(
        "ADAPTERS", path_of,
        "the folder from which adapters can be loaded while the server runs "
        "(`/v1/load_lora_adapter`); unset: none")
    otlp_endpoint: str | None = foreign(
        ("OTEL_EXPORTER_OTLP_ENDPOINT",), lambda reader: reader.foreign_text(
            "OTEL_EXPORTER_OTLP_ENDPOINT"), None,
        "the URL of an OpenTelemetry collector for [traces](#traces)")
# fmt: on
