"""The page for browsers, and what it shows."""
