"""Worker processes, one per model: the protocol, its client and the worker itself."""
