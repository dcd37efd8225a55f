"""GPUs for the tests of this folder."""

from collections.abc import Iterator, Sequence

import pytest
from support.devices import StandIn

from tampu.engine import bound_model
from tampu.ml.devices import Device, find_devices


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[StandIn, StandIn]]:
    """Two devices, which are all free again at the end."""
    found = StandIn(0), StandIn(1)
    every = (*(each.device for each in found), *find_devices())
    monkeypatch.setattr(bound_model, "find_devices", lambda: every)
    yield found
    assert [each.taken for each in found] == [0, 0]


@pytest.fixture
def gpus(request: pytest.FixtureRequest) -> Sequence[StandIn | Device]:
    """Two devices: stand-ins, or those of the driver that `--devices` names; one of `one`."""
    chosen = request.config.getoption("--devices")
    if chosen == "stand-ins":
        return list(request.getfixturevalue("devices"))
    found = [device for device in find_devices() if device.is_graphics]
    assert len(found) == 2 or chosen == "one", (
        "GGML_VK_VISIBLE_DEVICES=0,0 makes two devices of one"
    )
    return found
