"""`tampu compare` and `tampu verify`: how far a model file is from another file or a checkpoint."""
