"""Constituency parsing (section 6.3): task, trees, tokenizer, constrained search and EVALB scores."""

from train.tasks.parsing import task
