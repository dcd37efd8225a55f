"""Images that requests name by their addresses."""
