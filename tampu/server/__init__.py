"""The HTTP server: models in memory, and the API families over them."""
