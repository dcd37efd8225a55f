"""Trains tampu's tiny built-in multimodal model from scratch on data it generates itself."""
