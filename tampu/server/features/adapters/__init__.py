"""Adapters that are loaded while the server runs."""
