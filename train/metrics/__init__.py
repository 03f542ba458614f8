"""Scores of model outputs."""
