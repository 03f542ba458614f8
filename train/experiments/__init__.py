"""Reproduction of the paper's tables, cost estimates, and the demo."""
