"""The models of a server, and requests of any API."""
