"""Fields of requests that several APIs share."""
