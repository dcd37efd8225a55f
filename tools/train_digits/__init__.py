"""A tiny model that hears spoken digits: its data, training and measurement."""
