"""Training a model: the optimizer, one update, validation, the loop and its checkpoints."""
