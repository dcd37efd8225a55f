#!/bin/sh
# Prints what is installed in the virtual environment $1 as pip constraints.
# Not tampu itself; and a local build of torch stands for its version.
set -eu

echo "# Made by \`make lock\`: the versions that are tested together."
"$1/bin/python" -m pip --disable-pip-version-check freeze --exclude-editable |
    grep -v -i '^tampu\b' | sed 's/+[a-z0-9.]*$//'
