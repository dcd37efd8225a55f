"""Decisions, ranking and scores."""
