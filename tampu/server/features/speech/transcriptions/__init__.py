"""Transcriptions and translations of files."""
