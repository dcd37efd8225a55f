"""The last line of a process that C++ ends, thrown by a library that the test compiles."""

import subprocess
import sys
from pathlib import Path

import pytest

from tampu.ml.termination import cause_of, readable_name

SOURCE = """
#include <stdexcept>
namespace vk {
struct DeviceLostError : std::runtime_error { using std::runtime_error::runtime_error; };
struct OutOfDeviceMemoryError : std::runtime_error { using std::runtime_error::runtime_error; };
struct FormatNotSupportedError : std::runtime_error { using std::runtime_error::runtime_error; };
}
extern "C" void lost() { throw vk::DeviceLostError("lost"); }
extern "C" void memory() { throw vk::OutOfDeviceMemoryError("memory"); }
extern "C" void other() { throw vk::FormatNotSupportedError("other"); }
extern "C" void plain() { throw std::runtime_error("plain"); }
"""
PROGRAM = """
import ctypes, sys, threading
import tampu.ml.library
from tampu.ml.termination import explain_termination
explain_termination("Error: ")
thrown = getattr(ctypes.CDLL(sys.argv[1]), sys.argv[2])
thread = threading.Thread(target=thrown)
thread.start()
thread.join()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("thrown")
    (folder / "thrown.cpp").write_text(SOURCE)
    path = folder / "thrown.so"
    subprocess.run(["c++", "-shared", "-fPIC", folder / "thrown.cpp", "-o", path], check=True)
    return path


@pytest.mark.parametrize(
    ("function", "line"),
    [("lost", "the GPU was lost while it computed, as when its driver is reset "
              "(vk::DeviceLostError)"),
     ("memory", "the GPU has no memory left to compute: use fewer layers on it (num_gpu), or a "
                "smaller context (vk::OutOfDeviceMemoryError)"),
     ("other", "ggml's code for the GPU has failed (vk::FormatNotSupportedError)"),
     ("plain", "ggml's code for the GPU has failed (runtime_error)")],
)  # fmt: skip
def test_an_exception_that_nothing_catches_ends_the_process_with_one_line(
    library: Path, function: str, line: str
) -> None:
    command = [sys.executable, "-c", PROGRAM, str(library), function]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"Error: {line}\n")


def test_names_are_written_as_in_cpp() -> None:
    assert readable_name("N2vk11SystemErrorE") == "vk::SystemError"
    assert readable_name("St13runtime_error") == "runtime_error"
    assert readable_name("12TopLevelName") == "TopLevelName"
    assert readable_name("") == ""
    assert cause_of("").endswith("(no C++ exception)")
