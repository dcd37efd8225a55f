"""Batches of requests, and the files that they read and write."""
