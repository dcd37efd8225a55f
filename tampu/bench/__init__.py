"""`tampu bench`: speeds of a model, and of llama.cpp beside it."""
