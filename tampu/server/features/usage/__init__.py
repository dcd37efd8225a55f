"""What API keys have used."""
