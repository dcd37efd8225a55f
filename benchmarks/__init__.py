"""Models for measurements, and the scripts that measure the published figures."""
