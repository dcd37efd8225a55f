"""Registries: models from other machines and to them, by the OCI protocol and the Hub's."""
