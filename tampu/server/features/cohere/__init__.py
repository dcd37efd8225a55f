"""Embeddings in the form of Cohere's API."""
