"""The environment and the configuration file, read once."""
