#!/bin/sh
# Puts Debian's docker-registry, which the tests pull from and push to, into the virtual environment
# $1, unless it is installed already. It is unpacked, not installed: no service starts on this
# machine. Without it those tests fail and say so; everything else works.
set -u

target=$1/docker-registry
if command -v docker-registry >/dev/null || [ -x "$target/usr/bin/docker-registry" ]; then
    exit 0
fi

give_up() {
    echo "setup: the tests of registries will fail: $1" >&2
    rm -rf "$target.new"
    exit 0
}

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
    give_up "this is no Debian; put docker-registry (the reference registry) on the PATH"
mkdir -p "$target.new" && cd "$target.new" || give_up "cannot write to $target.new"
if ! apt-get -qq -o APT::Sandbox::User=root download docker-registry 2>/dev/null; then
    [ "$(id -u)" = 0 ] || give_up "as root: apt-get update && apt-get install docker-registry"
    apt-get -qq update
    apt-get -qq -o APT::Sandbox::User=root download docker-registry || give_up "apt-get cannot download docker-registry"
fi
dpkg-deb -x docker-registry_*.deb . || give_up "the package docker-registry cannot be unpacked"
rm docker-registry_*.deb
cd .. && rm -rf docker-registry && mv docker-registry.new docker-registry
