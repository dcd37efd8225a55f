#!/bin/sh
# Puts Debian's emulators of 64-bit x86 and ARM processors into the virtual environment $1, as
# qemu/qemu-x86_64 and qemu/qemu-aarch64: the tests run programs as other processors would. They are
# unpacked, not installed. Without them those tests fail and say so; everything else works.
set -u

target=$1/qemu
[ ! -x "$target/qemu-x86_64" ] || exit 0

give_up() {
    echo "setup: the tests with emulated processors will fail: $1" >&2
    rm -rf "$target.new"
    exit 0
}

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || give_up "this is no Debian"
mkdir -p "$target.new/found" && cd "$target.new" || give_up "cannot write to $target.new"
if [ -z "$(apt-cache search --names-only '^qemu-user$')" ]; then
    [ "$(id -u)" = 0 ] || give_up "as root: apt-get update"
    apt-get -qq update
fi
# Which of the packages needs no other library depends on Debian's version.
for package in qemu-user-static qemu-user; do
    apt-get -qq download "$package" 2>/dev/null && dpkg-deb -x "$package"_*.deb . || continue
    for emulator in qemu-x86_64 qemu-aarch64; do
        for name in "usr/bin/$emulator-static" "usr/bin/$emulator"; do
            if [ ! -e "found/$emulator" ] && "$name" --version >/dev/null 2>&1; then
                cp -L "$name" "found/$emulator"
            fi
        done
    done
done
[ -x found/qemu-x86_64 ] && [ -x found/qemu-aarch64 ] || give_up "apt-get has no emulator that runs"
cd .. && rm -rf qemu && mv qemu.new/found qemu && rm -rf qemu.new
