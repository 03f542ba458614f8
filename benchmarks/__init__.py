"""Benchmarks against peers: each program runs our engine and another one alternately on the same work and prints
ratios.

The peers (PyTorch, CTranslate2) are installed by `make bench`, never by the packages. RESULTS.md has the current
figures, HISTORY.md all measurements.
"""
