#!/bin/sh
# Compiles a part of ggml's CUDA code without a GPU and without CUDA installed: $1 is the Python of the virtual
# environment, $2 a folder for all of it (1 GB). The compiler and the libraries are those of
# cuda_packages.txt, from PyPI; ten of the objects are compiled and linked. Nothing is run.
set -eu

python=$1
mkdir -p "$2"
folder=$(cd "$2" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
# The operations of one step: products of vectors, attention's parts, and how the best logits are found.
objects="scale argmax top-k concat getrows sumrows norm rope softmax cpy"

fail() {
    echo "setup: CUDA: $1" >&2
    exit 1
}

for program in cmake ninja g++; do
    command -v "$program" >/dev/null || fail "no $program found; on Debian: apt-get install g++; make cuda has the others"
done
cuda=$(sh "$root/tools/setup/cuda_toolkit.sh" "$python" "$folder")

cmake -S "$folder/vendor/ggml" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DGGML_CUDA=ON -DGGML_CUDA_NO_VMM=ON -DGGML_CUDA_NCCL=OFF -DGGML_CCACHE=OFF -DGGML_BUILD_TESTS=OFF \
    -DGGML_BUILD_EXAMPLES=OFF -DCMAKE_CUDA_ARCHITECTURES="${CUDA_ARCHITECTURES:-90}" \
    -DCMAKE_CUDA_COMPILER="$cuda/bin/nvcc" -DCUDAToolkit_ROOT="$cuda" >"$folder/configure.log" 2>&1 ||
    fail "ggml cannot be configured: $(tail -n 3 "$folder/configure.log")"
found=
for name in $objects; do
    found="$found src/ggml-cuda/CMakeFiles/ggml-cuda.dir/$name.cu.o"
done
# shellcheck disable=SC2086 - names without spaces
ninja -C "$folder/build" $found
# The rest of the code is missing, so this is no library to load: it shows that the parts fit.
# shellcheck disable=SC2086
(cd "$folder/build" && "$cuda/bin/nvcc" -shared -o libpart.so $found -L"$cuda/lib" -lcudart -lcublas)
echo "setup: CUDA: compiled and linked $(echo $objects | wc -w) of $(ls "$folder"/vendor/ggml/src/ggml-cuda/*.cu "$folder"/vendor/ggml/src/ggml-cuda/template-instances/*.cu | wc -l) objects; nothing was run"
