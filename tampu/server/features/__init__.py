"""What the server can do besides the three APIs; each folder is one feature."""
