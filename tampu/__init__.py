"""A local-LLM engine and server in Python on ggml."""
