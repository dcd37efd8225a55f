"""HTTP: connections, keys, limits, bodies, routes and errors; knows no model."""
