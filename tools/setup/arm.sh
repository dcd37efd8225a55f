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
fetch() {
    apt-get -qq -o APT::Sandbox::User=root download "$@" 2>/dev/null
}
download() { # again with new lists if the old ones name what is no longer there
    fetch "$@" || { [ "$(id -u)" = 0 ] && apt-get -qq update && fetch "$@"; }
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
unpack() {
    for package in *.deb; do
        dpkg-deb -x "$package" . || give_up "$package cannot be unpacked"
        rm "$package"
    done
}
unpack
# The linker's scripts say where the ARM libraries would be installed; they are beside the scripts.
for script in $(grep -l "GNU ld script" usr/aarch64-linux-gnu/lib/*.so); do
    sed -i 's,/usr/aarch64-linux-gnu/lib/,,g' "$script"
done
# An emulator that needs no libraries; since Debian 13 that of qemu-user is one.
mkdir bin
for name in qemu-aarch64-static qemu-aarch64; do
    package=qemu-user${name#qemu-aarch64}
    [ -x bin/qemu ] || { download "$package" && unpack && mv usr/bin/$name bin/qemu; }
    rm -f usr/bin/qemu-*
done
[ -x bin/qemu ] || give_up "apt-get cannot download qemu-user"

folders=
for folder in usr/lib/*-linux-gnu lib/*-linux-gnu; do
    [ ! -d "$folder" ] || folders=$folders:\$root/$folder
done
cat > bin/cc <<END
#!/bin/sh
root=\$(cd "\$(dirname "\$0")/.." && pwd)
LD_LIBRARY_PATH=${folders#:} exec "\$root/usr/bin/aarch64-linux-gnu-gcc-$gcc" "\$@"
END
cat > bin/run <<END
#!/bin/sh
root=\$(cd "\$(dirname "\$0")/.." && pwd)
exec "\$root/bin/qemu" -L "\$root/usr/aarch64-linux-gnu" "\$@"
END
chmod +x bin/cc bin/run

echo 'int main(void) { return 0; }' > try.c
said=$(bin/cc try.c -o try 2>&1 && bin/run ./try 2>&1) || give_up "$(echo "$said" | head -n 1)"
rm try.c try
cd .. && rm -rf arm && mv arm.new arm
