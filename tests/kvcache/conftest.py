from support.graphs import backend, compute, context, given  # noqa: F401
