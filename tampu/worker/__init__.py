"""A model in a process of its own: the protocol, its client and its main loop."""
