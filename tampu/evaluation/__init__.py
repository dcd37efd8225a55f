"""`tampu compare` and `tampu verify`: how far the values of two models are from each other."""
