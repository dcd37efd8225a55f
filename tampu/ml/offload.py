"""Which layers the user wants on devices besides the CPU."""

from __future__ import annotations

from dataclasses import dataclass

from tampu.errors import RequestError


@dataclass(frozen=True, slots=True)
class Offload:
    """The layers that the user wants on devices.

    Attributes:
        layers: how many of the last layers go to devices, as Ollama and llama.cpp count them: one
            more than the model has takes the output layer too; None: as many as fit.
        main: which device takes layers first, and alone if they fit; None: the one with the most
            free memory.
        split: how many of the layers each device takes, in proportion; empty: by free memory.
    """

    layers: int | None = None
    main: int | None = None
    split: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values outside their range.

        Raises:
            RequestError: naming the option.
        """
        if self.layers is not None and self.layers < 0:
            raise RequestError(f"num_gpu must be 0 or more, not {self.layers}")
        if self.main is not None and self.main < 0:
            raise RequestError(f"main_gpu must be 0 or more, not {self.main}")
        if any(part < 0 for part in self.split) or (self.split and not any(self.split)):
            raise RequestError("tensor_split must be parts of 0 or more, and one over 0")


AUTOMATIC = Offload()
