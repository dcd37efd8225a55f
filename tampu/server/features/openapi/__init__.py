"""The description of the API, in OpenAPI's form."""
