#!/bin/sh
# Puts llama-server's own tests, which only the source archive of llama-cpp-python has, into the
# virtual environment $1, unless they are there, beside an environment with what they import.
set -eu

target=$1/llama-server
version=0.3.36
digest=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
tests=llama_cpp_python-$version/vendor/llama.cpp/tools/server/tests

rm -rf "$target"
mkdir -p "$target"
"$1/bin/python" -m pip --disable-pip-version-check --quiet download --no-deps \
    --no-binary llama-cpp-python --dest "$target" "llama-cpp-python==$version"
archive=$target/llama_cpp_python-$version.tar.gz
echo "$digest  $archive" | sha256sum --check --quiet
tar -xzf "$archive" -C "$target" "$tests"
mv "$target/$tests" "$target/tests"
rm -rf "$archive" "$target/llama_cpp_python-$version"
"$1/bin/python" -m venv "$target/environment"
"$target/environment/bin/pip" --disable-pip-version-check --quiet install \
    -r tests/llama_server/requirements.txt
