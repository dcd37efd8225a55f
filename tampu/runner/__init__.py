"""The run loop: sequences, batches and prefix reuse over one loaded model."""
