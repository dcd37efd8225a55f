"""A folder with which one command shows what tampu does on a GPU, on a machine without a network.

`build.py` makes it here (`make gpu-bundle`); `check.sh` and `check.py` run there; each of `steps` is
one part of the check, in a process of its own.
"""
