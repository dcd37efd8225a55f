#!/bin/sh
# Puts Debian's compiler for 64-bit ARM and an emulator of it, with which the tests run the kernels as
# they are on such processors, into the virtual environment $1. They are unpacked, not installed.
# Without them that test fails and says so; everything else works.
set -u

target=$1/arm
[ ! -x "$target/bin/cc" ] || exit 0

give_up() {
    echo "setup: the test of the kernels on ARM will fail: $1" >&2
    rm -rf "$target.new"
    exit 0
}

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || give_up "this is no Debian"
mkdir -p "$target.new" && cd "$target.new" || give_up "cannot write to $target.new"
version() {
    apt-cache depends gcc-aarch64-linux-gnu 2>/dev/null |
        sed -n 's/.*Depends: gcc-\([0-9]*\)-aarch64-linux-gnu$/\1/p'
}
if [ -z "$(version)" ]; then
    [ "$(id -u)" = 0 ] || give_up "as root: apt-get update"
    apt-get -qq update
fi
gcc=$(version)
[ -n "$gcc" ] || give_up "there is no package gcc-aarch64-linux-gnu"
apt-get -qq download "gcc-$gcc-aarch64-linux-gnu" "cpp-$gcc-aarch64-linux-gnu" \
    "libgcc-$gcc-dev-arm64-cross" binutils-aarch64-linux-gnu libgcc-s1-arm64-cross \
    libc6-dev-arm64-cross libc6-arm64-cross linux-libc-dev-arm64-cross qemu-user 2>/dev/null ||
    give_up "apt-get cannot download the packages"
for package in *.deb; do
    dpkg-deb -x "$package" . || give_up "$package cannot be unpacked"
    rm "$package"
done
mkdir bin
cat > bin/cc <<END
#!/bin/sh
root=\$(dirname "\$0")/..
LD_LIBRARY_PATH=\$(echo "\$root"/usr/lib/*-linux-gnu) exec "\$root/usr/bin/aarch64-linux-gnu-gcc-$gcc" "\$@"
END
cat > bin/run <<'END'
#!/bin/sh
root=$(dirname "$0")/..
exec "$root/usr/bin/qemu-aarch64" -L "$root/usr/aarch64-linux-gnu" "$@"
END
chmod +x bin/cc bin/run
cd .. && rm -rf arm && mv arm.new arm
