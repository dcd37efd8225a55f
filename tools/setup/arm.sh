#!/bin/sh
# Puts Debian's compiler for 64-bit ARM and an emulator of it, with which the tests run the kernels as
# they are on such processors, into the virtual environment $1, with the libraries that they need.
# They are unpacked, not installed. Without them that test fails and says so; everything else works.
set -u

target=$1/arm
[ ! -x "$target/bin/cc" ] || [ "$0" -nt "$target/bin/cc" ] || exit 0

give_up() {
    echo "setup: the test of the kernels on ARM will fail: $1" >&2
    rm -rf "$target.new"
    exit 0
}

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || give_up "this is no Debian"
mkdir -p "$1" && target=$(cd "$1" && pwd)/arm
rm -rf "$target.new" && mkdir "$target.new" && cd "$target.new" || give_up "cannot write to $target.new"

depends() {
    apt-cache depends "$@" 2>/dev/null | sed -n 's/^ *Depends: \([a-z0-9.+-]*\)$/\1/p' | sort -u
}
version() {
    depends gcc-aarch64-linux-gnu | sed -n 's/^gcc-\([0-9]*\)-aarch64-linux-gnu$/\1/p'
}
download() {
    apt-get -qq -o APT::Sandbox::User=root download "$@" 2>/dev/null
}

if [ -z "$(version)" ]; then
    [ "$(id -u)" = 0 ] || give_up "as root: apt-get update"
    apt-get -qq update
fi
gcc=$(version)
[ -n "$gcc" ] || give_up "there is no package gcc-aarch64-linux-gnu"
tools="gcc-$gcc-aarch64-linux-gnu cpp-$gcc-aarch64-linux-gnu binutils-aarch64-linux-gnu"
# Libraries that the system's own compiler may not have brought; the C library is the system's.
libraries=$(depends $tools | grep '^\(lib\|zlib\)' | grep -v '^\(libc6\|libgcc-s1\|libstdc++6\)$\|-cross$')
download $tools $libraries "libgcc-$gcc-dev-arm64-cross" libgcc-s1-arm64-cross \
    libc6-dev-arm64-cross libc6-arm64-cross linux-libc-dev-arm64-cross ||
    give_up "apt-get cannot download the packages"
# Since Debian 13 the emulator of qemu-user needs no libraries; before, that is qemu-user-static's.
download qemu-user && download qemu-user-static || download qemu-user-static ||
    give_up "apt-get cannot download qemu-user"
for package in *.deb; do
    dpkg-deb -x "$package" . || give_up "$package cannot be unpacked"
    rm "$package"
done

mkdir bin
cat > bin/cc <<END
#!/bin/sh
root=\$(cd "\$(dirname "\$0")/.." && pwd)
host=\$("\$root/bin/host")
LD_LIBRARY_PATH=\$root/usr/lib/\$host:\$root/lib/\$host exec "\$root/usr/bin/aarch64-linux-gnu-gcc-$gcc" "\$@"
END
