"""Calls of tools that are sent to URLs."""
