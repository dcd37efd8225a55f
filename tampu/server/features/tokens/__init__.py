"""Tokens of texts, texts of tokens, and prompts of conversations."""
