"""The wire formats: one file per API family, structs and pure functions to and from them."""
