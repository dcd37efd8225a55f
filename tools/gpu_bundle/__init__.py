"""A folder that checks tampu on a GPU with one command, without a network.

`build.py` makes it here (`make gpu-bundle`); `check.sh` and `check.py` run there; each module of
`steps` is one part of the check, in a process of its own.
"""
