from support.graphs import backend, compute, context, given, plain_backend  # noqa: F401
