"""What the server and a model's process say to each other, as msgpack frames over a socket pair.

The server sends one `Load`, then any number of `Generate` and `Cancel`; closing the socket ends
the process. The process answers with `Progress` until it sends `Ready` or `LoadFailed`, then with
an `Answer` per event of a request: at most one `PromptProcessed`, any number of `TextDelta`, then
one `Done` or `Failed`. `Embed`, `Encode` and `Decode` have one event each; a `Ping` has its `Pong`,
so that a process that hangs is noticed. A frame is its length (4 bytes, little-endian) and that
many bytes.
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

import msgspec

from tampu import errors
from tampu.errors import ModelFileError, RequestError, TampuError
from tampu.ml.offload import Offload
from tampu.runner.events import Done, Failed, TextDelta, TokenLogprob
from tampu.runner.request import GenerateOptions
from tampu.sampling.options import CheckedOptions
from tampu.sampling.parameters import DEFAULTS

HEADER = struct.Struct("<I")
MAX_SLOTS = 1024
MAX_FRAME = 256 * 1024 * 1024


class LoadOptions(CheckedOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model is loaded; other values need another process.

    Attributes:
        context: the length of the context in tokens, for each slot.
        slots: how many requests run at once.
        batch: how many tokens of prompts are computed in one step.
        threads: threads of the CPU; None: as many as it has fast cores.
        cache_type: the type of the KV cache.
        flash_attention: whether to use it; None: where it is faster.
        kernels: what the package's own C code computes: on, off, products, experts or
            attention.
        engine: what computes: native, llamacpp, or auto: the first of them that knows the model.
        gpu_layers: how many of the last layers go to devices besides the processor; below 0: as
            many as fit.
        main_gpu: which of them takes layers first; None: the one with the most free memory.
        tensor_split: how many of the layers each takes, in proportion; empty: by free memory.
        use_mmap: whether weights are used in the file's mapping where they can be, not copied.
        repack_cache: the folder of packed weights, and the most bytes in it; None: none are kept.
        tuning: how weights are read from memory (auto: measured), and the folder that keeps what
            was measured; None: none does.
        vocabulary_only: load no weights: tokens and prompts can be asked for, nothing else.
        template: in place of that of the file; empty: that.
        parser: what reads answers, by Ollama's names; empty: the template shows how they are.
        adapters: files of adapters, and how much of each.
        projector: a file with the part that sees; None: it is in the model's, or there is none.
    """

    context: int = DEFAULTS["context"]
    slots: int = 1
    batch: int = DEFAULTS["batch"]
    threads: int | None = DEFAULTS["threads"]
    cache_type: str = "f16"
    flash_attention: bool | None = None
    kernels: str = "on"
    engine: str = "auto"
    gpu_layers: int = DEFAULTS["gpu_layers"]
    main_gpu: int | None = DEFAULTS["main_gpu"]
    tensor_split: tuple[float, ...] = ()
    use_mmap: bool = DEFAULTS["use_mmap"]
    repack_cache: tuple[str, int] | None = None
    tuning: tuple[str, str | None] = ("auto", None)
    vocabulary_only: bool = False
    template: str = ""
    parser: str = ""
    adapters: tuple[tuple[str, float], ...] = ()
    projector: str | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            RequestError: naming the option and its range.
        """
        super().__post_init__()
        if not 1 <= self.slots <= MAX_SLOTS:
            raise RequestError(f"slots must be from 1 to {MAX_SLOTS}, not {self.slots}")

    @property
    def offload(self) -> Offload:
        """Which layers go to devices."""
        layers = None if self.gpu_layers < 0 else self.gpu_layers
        return Offload(layers, self.main_gpu, self.tensor_split)


class TextPrompt(msgspec.Struct, frozen=True, tag="text"):
    """A prompt as it stands: no template is applied."""

    text: str


class TokensPrompt(msgspec.Struct, frozen=True, tag="tokens"):
    """A prompt as token ids."""

    tokens: tuple[int, ...]


class FIMPrompt(msgspec.Struct, frozen=True, tag="insert"):
    """The texts before and behind what is wanted: fill in the middle."""

    before: str
    behind: str


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="chat"):
    """A conversation for the model's chat template.

    Attributes:
        messages: in the form of Hugging Face's templates.
        tools: functions that the model may call.
        variables: more values for the template.
        think: whether to think before the answer, or how hard; None: as the model does by itself.
        before: tokens of an earlier exchange that go in front.
        plain: the prompt for a model without a template; None: such a model refuses.
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] | None = None
    variables: dict[str, Any] = {}
    think: bool | str | None = None
    before: tuple[int, ...] = ()
    plain: str | None = None


Prompt: TypeAlias = TextPrompt | TokensPrompt | FIMPrompt | ChatPrompt


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Load this file; always the first command."""

    path: str
    options: LoadOptions


class StructuredOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The structure that an answer must have.

    Attributes:
        format: "json", a JSON schema, or an object with `regex`, `lark`, `gbnf` or `choices`; None:
            anything.
        must_call: it calls a function of the prompt's.
        may_call: it calls some, or has the format.
        tool: the only one it may call; None: any.
        is_parallel: it may call more than one.
    """

    format: Any = None
    must_call: bool = False
    may_call: bool = False
    tool: str | None = None
    is_parallel: bool = True


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    """Begin a request; `request` is the server's number for it."""

    request: int
    prompt: Prompt
    options: GenerateOptions
    form: StructuredOutput | None = None


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Nobody waits for this request any more; it ends with `Done("cancelled")`."""

    request: int


class Embed(msgspec.Struct, frozen=True, tag="embed"):
    """Compute the embeddings of texts; one that is too long is cut if `truncate`, else refused."""

    request: int
    inputs: tuple[TextPrompt | TokensPrompt, ...]
    truncate: bool = True


class Encode(msgspec.Struct, frozen=True, tag="encode"):
    """Return the tokens of a prompt, whatever its length.

    Of a text, `add_special` puts the model's beginning token in front, and `parse_special` reads
    control tokens written in it.
    """

    request: int
    prompt: Prompt
    add_special: bool = True
    parse_special: bool = True


class Decode(msgspec.Struct, frozen=True, tag="decode"):
    """Return the text of tokens."""

    request: int
    tokens: tuple[int, ...]


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Say that you are there, and whether your loop made no progress for too long."""

    patience_s: float


Command: TypeAlias = Load | Generate | Cancel | Embed | Encode | Decode | Ping


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """This part of the model (0 to 1) is loaded."""

    fraction: float


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The model is loaded.

    Attributes:
        context: of each slot, in tokens.
        memory_bytes: that it takes, on all devices together.
        device_bytes: of these, on devices besides the processor.
        engine: what computes.
        device_free: bytes that those devices can still give; None: nobody asked, or there are none.
    """

    context: int
    memory_bytes: int
    device_bytes: int = 0
    engine: str = "native"
    device_free: int | None = None


class LoadFailed(msgspec.Struct, frozen=True, tag="refused"):
    """The model could not be loaded; `kind` names a class of `tampu.errors`."""

    kind: str
    message: str


class PromptProcessed(msgspec.Struct, frozen=True, tag="prompted"):
    """The request's prompt is these tokens; it may end inside a thought that the answer goes on."""

    tokens: tuple[int, ...]
    begins_thought: bool = False


class PromptTokenLogprobs(msgspec.Struct, frozen=True, tag="prompt_scored"):
    """The first prompt token, and the log-probabilities of the others; before `Done`, if wanted."""

    first: bytes
    logprobs: tuple[TokenLogprob, ...]


class Embedded(msgspec.Struct, frozen=True, tag="embedded"):
    """Embeddings of length 1, little-endian F32, (inputs, width), and how many tokens were read."""

    vectors: bytes
    width: int
    tokens: int


class Encoded(msgspec.Struct, frozen=True, tag="encoded"):
    """A prompt's tokens, and the bytes that each stands for."""

    tokens: tuple[int, ...]
    pieces: tuple[bytes, ...]


class Decoded(msgspec.Struct, frozen=True, tag="decoded"):
    """The text of tokens."""

    text: str


RequestEvent: TypeAlias = (
    PromptProcessed | TextDelta | PromptTokenLogprobs | Done | Failed | Embedded | Encoded | Decoded
)


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """One event of one request."""

    request: int
    event: RequestEvent


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """The process is there; `stuck` says why it will give nothing more, if that is so."""

    stuck: str = ""


Reply: TypeAlias = Progress | Ready | LoadFailed | Answer | Pong

_encoder = msgspec.msgpack.Encoder()
_commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def to_frame(message: Command | Reply) -> bytes:
    """Return a message as the bytes that go over the socket."""
    body = _encoder.encode(message)
    return HEADER.pack(len(body)) + body


def take_frames(buffer: bytearray) -> list[bytes]:
    """Take the bodies of all whole frames from the beginning of what was received.

    Raises:
        ConnectionError: for a frame that is too long; the other side has lost its way.
    """
    bodies = []
    start = 0
    while len(buffer) - start >= HEADER.size:
        [length] = HEADER.unpack_from(buffer, start)
        if length > MAX_FRAME:
            raise ConnectionError(f"a frame of {length} bytes")
        end = start + HEADER.size + length
        if len(buffer) < end:
            break
        bodies.append(bytes(buffer[start + HEADER.size : end]))
        start = end
    del buffer[:start]
    return bodies


def to_command(body: bytes) -> Command:
    """Return the command in a frame's body."""
    return _commands.decode(body)


def to_reply(body: bytes) -> Reply:
    """Return the reply in a frame's body."""
    return _replies.decode(body)


def to_error(kind: str, message: str) -> TampuError:
    """Return the exception that a `Failed` or `LoadFailed` stands for."""
    if kind == ModelFileError.__name__:
        field, _, reason = message.partition(": ")
        return ModelFileError(field, reason)
    found = vars(errors).get(kind)
    if isinstance(found, type) and issubclass(found, TampuError):
        return found(message)
    return TampuError(message)
