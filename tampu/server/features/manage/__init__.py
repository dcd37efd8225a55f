"""Models of the store: created, copied, deleted, pulled and pushed, in the form of Ollama's API."""
