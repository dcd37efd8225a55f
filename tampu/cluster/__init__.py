"""Replicas of models on many machines, with Ray Serve; only this package imports Ray."""
