"""Reproduce the paper's tables, estimate the cost of training, and run the demo."""
