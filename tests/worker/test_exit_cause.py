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


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        (["INFO tampu: loaded demo: weights 1 MiB"], "exit code 1"),
        (["DEBUG tampu.ml: x", "INFO tampu.ml: x"], "exit code 1"),
        (["ggml aborts", "INFO tampu: loaded"], "exit code 1: ggml aborts"),
        (["WARNING tampu: little memory"], "exit code 1: WARNING tampu: little memory"),
        (["INFO of a driver: bad"], "exit code 1: INFO of a driver: bad"),
        ([], "exit code 1"),
    ],
)
def test_an_ordinary_line_of_the_log_is_no_cause(output: list[str], cause: str) -> None:
    assert describe_exit(1, output) == cause
