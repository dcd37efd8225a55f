"""The `tampu` command."""
