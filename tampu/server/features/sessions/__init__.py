"""Sessions of requests, for routers of replicas."""
