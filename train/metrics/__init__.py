"""Scores of what a model gives."""
