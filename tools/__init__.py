"""Programs for building, checking and documenting the project."""
