#!/bin/sh
# NVIDIA's compiler and libraries of cuda_packages.txt, from PyPI, and ggml's sources: $1 is the Python of the
# virtual environment, $2 a folder for all of it (1 GB). Prints where the toolkit is. A second call finds it there.
set -eu

python=$1
mkdir -p "$2"
folder=$(cd "$2" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)

if [ ! -e "$folder/installed" ]; then
    "$python" -m pip --disable-pip-version-check --quiet install --no-deps --upgrade \
        --target "$folder/site" -r "$root/tools/setup/cuda_packages.txt"
    "$python" -m pip --disable-pip-version-check --quiet download --no-deps \
        --no-binary ggml-python -d "$folder" -c "$root/requirements.lock" ggml-python
    tar -xzf "$folder"/ggml_python-*.tar.gz -C "$folder" --strip-components=1
    touch "$folder/installed"
fi
cuda=$(echo "$folder"/site/nvidia/cu*)
[ -x "$cuda/bin/nvcc" ] || { echo "setup: CUDA: the packages have no bin/nvcc" >&2; exit 1; }
for name in cudart cublas cublasLt; do  # cmake looks for the names without versions
    library=$(ls "$cuda/lib/lib$name".so.* | head -n 1)
    ln -sf "$(basename "$library")" "$cuda/lib/lib$name.so"
done
[ -e "$cuda/lib64" ] || ln -s lib "$cuda/lib64"
echo "$cuda"
