#!/bin/sh
# Makes the virtual environment $1 with the first Python that will do, and says what is missing.
set -eu

fail() {
    echo "setup: $1" >&2
    exit 1
}

fits() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

for candidate in ${PYTHON:-python3 python3.11 python3.12 python3.13}; do
    if fits "$candidate"; then
        python=$candidate
        break
    fi
done
[ -n "${python:-}" ] || fail "no Python 3.11 or newer found (tried ${PYTHON:-python3 python3.11 python3.12 python3.13}); on Debian: apt-get install python3 python3-venv"

for compiler in cc c++; do
    command -v "$compiler" >/dev/null || fail "no C compiler found ($compiler), and ggml must be compiled; on Debian: apt-get install build-essential"
done
for header in stdlib.h vector; do
    printf '#include <%s>\nint main() { return 0; }\n' "$header" | c++ -x c++ - -o /dev/null 2>/dev/null ||
        fail "the C++ compiler (c++) cannot compile a program with <$header>, and ggml must be compiled; on Debian: apt-get install build-essential"
done

if ! "$python" -m venv "$1"; then
    rm -rf "$1"
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    fail "$python -m venv failed; on Debian: apt-get install python$version-venv"
fi
