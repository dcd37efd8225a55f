from support.graphs import backend  # noqa: F401
