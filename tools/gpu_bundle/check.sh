#!/bin/sh
# Checks tampu on this machine's GPU: sh check.sh [FOLDER OF THE REPORT] [options of check.py].
# PYTHON=python3.12 chooses the interpreter, which should have PyTorch. Nothing is installed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec "${PYTHON:-python3}" -B "$here/source/tools/gpu_bundle/check.py" --bundle "$here" "$@"
