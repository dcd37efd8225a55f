"""Control vectors that requests may choose."""
