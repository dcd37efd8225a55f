"""What a process's last lines say about a GPU that was lost."""

import pytest

from tampu.worker.exit_cause import describe_exit

AT = "ggml_vulkan: ctx->device->device.waitForFences error ErrorDeviceLost at ggml-vulkan.cpp:2293"


@pytest.mark.parametrize(
    ("code", "line", "cause"),
    [(1, AT, f"exit code 1 (the GPU was lost, as when its driver is reset): {AT}"),
     (-6, "CUDA error: unspecified launch failure",
      "signal SIGABRT (the GPU was lost, as when its driver is reset): "
      "CUDA error: unspecified launch failure"),
     (1, "ErrorUnknown", "exit code 1: ErrorUnknown")],
)  # fmt: skip
def test_a_lost_gpu_is_told(code: int, line: str, cause: str) -> None:
    assert describe_exit(code, ["loading", line]) == cause
