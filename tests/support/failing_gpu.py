"""A model's process whose GPU is a stand-in: `python failing_gpu.py FILE --socket FD ...`.

While the file is there, computing on it ends with the status that the file has.
"""

from __future__ import annotations

import sys
from pathlib import Path

from support.devices import StandIn

from tampu.engine import bound_model
from tampu.ml.devices import find_devices
from tampu.runner import idle_warm_up
from tampu.worker.main import main


class FailingGPU(StandIn):
    """A GPU that fails while there is a file.

    Attributes:
        file: has the status.
    """

    file = Path()

    @property
    def fails_with(self) -> int:
        """The status that computing ends with."""
        return int(self.file.read_text()) if self.file.exists() else 0

    @fails_with.setter
    def fails_with(self, status: int) -> None:
        """Ignore what the class begins with."""


if __name__ == "__main__":
    idle_warm_up.REST_S = 3600.0  # only requests compute
    gpu = FailingGPU()
    gpu.file = Path(sys.argv[1])
    devices = (gpu.device, *find_devices())
    bound_model.find_devices = lambda: devices  # type: ignore[attr-defined]
    main(sys.argv[2:])
