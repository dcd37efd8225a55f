"""Which models and options can be computed deterministically: the same bits whatever else runs.

See docs/runner.md. What is not known to be so is refused when a model is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator

from tampu.engine.bound_model import BoundModel, cache_types
from tampu.engine.load_options import LoadOptions
from tampu.errors import RequestError, UnsupportedModelError
from tampu.kvcache.causal import CACHE_TYPES
from tampu.ml import Backend
from tampu.ml.attention import READ_TYPES, attends_to
from tampu.nn import LayerShape, cache_parts
from tampu.settings.choices import KERNEL_LEVELS


def check_deterministic(bound: BoundModel, options: LoadOptions, backend: Backend) -> None:
    """Refuse what does not compute the same bits in any batch, if the options ask for that.

    Raises:
        RequestError: naming an option that cannot be combined with it, or the devices.
        UnsupportedModelError: naming the part of the model.
    """
    if not options.deterministic:
        return
    for problem in _option_problems(options, backend):
        raise RequestError(f"deterministic cannot be used with {problem}")
    for part in _unsupported_parts(bound, backend):
        raise UnsupportedModelError(
            f"{bound.info.name}: deterministic does not support {part}; load it without"
        )


def _option_problems(options: LoadOptions, backend: Backend) -> Iterator[str]:
    if backend.device_map.devices:
        labels = ", ".join(device.label for device in backend.device_map.devices)
        yield f"layers on {labels}: set gpu_layers to 0"
    if options.kernels not in ("on", *KERNEL_LEVELS):
        yield f"kernels {options.kernels}: set them to on"
    if backend.kernels is None:
        yield "this CPU, for which there are no kernels (see the log)"
    if options.flash_attention is False:
        yield "flash_attention off: leave it unset"
    for name in cache_types(options):
        if CACHE_TYPES.get(name) not in READ_TYPES:
            yield f"cache type {name}: use f16, f32 or q8_0"


def _unsupported_parts(bound: BoundModel, backend: Backend) -> Iterator[str]:
    model = bound.model
    if model.max_bidirectional_tokens is not None:
        yield "models whose tokens all attend to one another"
    for part in cache_parts(*model.cache_shapes()):
        if not isinstance(part, LayerShape):
            continue
        for features in (part.head_dim, part.value_features):
            if not attends_to(backend.kernels, features):
                yield f"attention heads of {features} features"
