#!/bin/sh
# Puts Debian's Chromium, in which the tests look at the page, into the virtual environment $1 as
# chromium/chromium, with the libraries that this system lacks, unless it is installed already. It is
# unpacked, not installed. Without it those tests fail and say so; everything else works.
set -u

target=$1/chromium
if command -v chromium >/dev/null || [ -x "$target/chromium" ]; then
    exit 0
fi

give_up() {
    echo "setup: the tests of the page will fail: $1" >&2
    rm -rf "$target.new"
    exit 0
}

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
    give_up "this is no Debian; put chromium on the PATH"
mkdir -p "$1" && target=$(cd "$1" && pwd)/chromium
rm -rf "$target.new" && mkdir "$target.new" && cd "$target.new" || give_up "cannot write to $target.new"

missing() { # what an installation would add
    apt-get -s --no-install-recommends install chromium fonts-dejavu-core 2>/dev/null |
        sed -n 's/^Inst \([^ ]*\).*/\1/p'
}
download() {
    packages=$(missing)
    [ -n "$packages" ] && apt-get -qq -o APT::Sandbox::User=root download $packages 2>/dev/null
}
if ! download; then
    [ "$(id -u)" = 0 ] || give_up "as root: apt-get update && apt-get install chromium"
    apt-get -qq update
    download || give_up "apt-get cannot download chromium"
fi
for package in *.deb; do
    dpkg-deb -x "$package" . || give_up "$package cannot be unpacked"
    rm "$package"
done
libraries=
for folder in "$PWD"/usr/lib/*-linux-gnu "$PWD"/usr/lib/*-linux-gnu/pulseaudio "$PWD"/lib/*-linux-gnu; do
    [ ! -d "$folder" ] || libraries=$libraries:$folder
done
libraries=$(echo "${libraries#:}" | sed "s,$target.new,\$root,g")
cat > fonts.conf <<END
<fontconfig><dir>/usr/share/fonts</dir><dir>$target/usr/share/fonts</dir><cachedir>$target/cache</cachedir></fontconfig>
END
cat > chromium <<END
#!/bin/sh
root=\$(cd "\$(dirname "\$0")" && pwd)
[ -d /etc/fonts ] || export FONTCONFIG_FILE="\$root/fonts.conf"
LD_LIBRARY_PATH="$libraries" exec "\$root/usr/lib/chromium/chromium" --no-sandbox "\$@"
END
chmod +x chromium
said=$(./chromium --headless --disable-gpu --dump-dom about:blank 2>&1) ||
    give_up "chromium does not start: $(echo "$said" | tail -n 1)"
cd .. && rm -rf chromium && mv chromium.new chromium
