"""Untrusted input is processed in child processes with limits of time, memory and access."""
