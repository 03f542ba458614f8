"""Learning: the loss, Adam, one update, validation, the loop."""
