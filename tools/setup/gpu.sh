#!/bin/sh
# Prints CMake's options for ggml with the backend $1 (vulkan, cuda, hip, metal; none: the CPU
# alone), or says in one line what is missing to compile it.
set -eu

fail() {
    echo "setup: $1" >&2
    exit 1
}

# Whether C++ that is read from standard input compiles.
compiles() {
    c++ -x c++ -std=c++17 -fsyntax-only "$@" - 2>/dev/null
}

# Prints the path of the program $1, also of one in the folder $2.
program() {
    command -v "$1" || { [ -x "$2/$1" ] && echo "$2/$1"; }
}

case ${1:-none} in
none) ;;
vulkan)
    command -v glslc >/dev/null || fail "no compiler of shaders found (glslc), and GPU=vulkan needs it; on Debian: apt-get install glslc"
    echo '#include <vulkan/vulkan.hpp>' | compiles || fail "no headers of Vulkan found (vulkan/vulkan.hpp), and GPU=vulkan needs them; on Debian: apt-get install libvulkan-dev"
    printf '#include <vulkan/vulkan.hpp>\nvk::LayerSettingEXT setting;\n' | compiles || fail "the headers of Vulkan are too old for ggml (no vk::LayerSettingEXT, as in Debian 12); Debian 13's libvulkan-dev has them, and so has: make vulkan"
    echo '#include <spirv/unified1/spirv.hpp>' | compiles || fail "no headers of SPIR-V found (spirv/unified1/spirv.hpp), and GPU=vulkan needs them; on Debian: apt-get install spirv-headers"
    echo 'int main() { return 0; }' | c++ -x c++ - -lvulkan -o /dev/null 2>/dev/null || fail "the loader of Vulkan cannot be linked (libvulkan.so), and GPU=vulkan needs it; on Debian: apt-get install libvulkan-dev"
    echo "-DGGML_VULKAN=ON"
    ;;
cuda)
    nvcc=$(program nvcc "${CUDA_PATH:-/usr/local/cuda}/bin") || fail "no compiler of CUDA found (nvcc, also not in ${CUDA_PATH:-/usr/local/cuda}/bin), and GPU=cuda needs it; on Debian: apt-get install nvidia-cuda-toolkit"
    echo "-DGGML_CUDA=ON -DCMAKE_CUDA_COMPILER=$nvcc"
    ;;
hip)
    hipconfig=$(program hipconfig "${ROCM_PATH:-/opt/rocm}/bin") || fail "no compiler of HIP found (hipconfig, also not in ${ROCM_PATH:-/opt/rocm}/bin), and GPU=hip needs it; on Debian: apt-get install hipcc"
    echo '#include <hipblas/hipblas.h>' | compiles -D__HIP_PLATFORM_AMD__ "-I$("$hipconfig" -R)/include" || fail "no headers of hipBLAS found (hipblas/hipblas.h), and GPU=hip needs them; on Debian: apt-get install libhipblas-dev librocblas-dev"
    echo "-DGGML_HIP=ON -DCMAKE_HIP_COMPILER=$("$hipconfig" -l)/clang"
    ;;
metal)
    [ "$(uname -s)" = Darwin ] || fail "GPU=metal is for macOS; here there are vulkan, cuda and hip"
    xcrun --find clang >/dev/null 2>&1 || fail "no compiler of Apple's found, and GPU=metal needs it: xcode-select --install"
    echo "-DGGML_METAL=ON -DGGML_METAL_EMBED_LIBRARY=ON"
    ;;
*) fail "GPU is '$1'; it must be vulkan, cuda, hip, metal or none" ;;
esac
