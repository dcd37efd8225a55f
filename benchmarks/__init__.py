"""Models to measure with, and the figures that the project publishes."""
