"""The Python API: load a model, generate, chat, embed."""
