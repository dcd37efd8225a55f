#!/bin/sh
# Puts the examples of the `ollama` package in Python, which only its source archive has, into the
# virtual environment $1, unless they are there: the tests run them unchanged. Without them those
# tests fail and say so; everything else works.
set -u

target=$1/ollama-examples
version=$(sed -n 's/^ollama==//p' requirements.lock)
if [ -d "$target/$version" ]; then
    exit 0
fi

give_up() {
    echo "setup: the tests of the ollama package's examples will fail: $1" >&2
    rm -rf "$target.new"
    exit 0
}

mkdir -p "$target.new" || give_up "cannot write to $target.new"
"$1/bin/python" -m pip --disable-pip-version-check --quiet download --no-deps --no-binary ollama \
    --dest "$target.new" "ollama==$version" || give_up "pip cannot download ollama's sources"
tar -xzf "$target.new/ollama-$version.tar.gz" -C "$target.new" || give_up "they do not unpack"
rm -rf "$target" && mkdir "$target" &&
    mv "$target.new/ollama-$version/examples" "$target/$version" && rm -rf "$target.new"
