"""Fails if ggml was compiled without the matrix kernels that prompts need."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # no tampu is installed yet

from tampu.errors import LibraryError

REMEDY = """\
setup: ggml was compiled without GGML_LLAMAFILE, so prompts would be processed at half the speed.
Install it again:
  .venv/bin/python -m pip uninstall -y ggml-python && make run"""


def main() -> int:
    try:
        from tampu.ml.library import gg
    except LibraryError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    if gg.ggml_cpu_has_llamafile():
        return 0
    print(REMEDY, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
