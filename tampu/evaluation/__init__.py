"""`tampu compare`: how far the predictions of two models or engines are from each other."""
