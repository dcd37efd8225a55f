"""Registries: pulls and pushes models by the OCI protocol and the Hugging Face Hub's."""
