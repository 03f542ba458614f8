"""Benchmarks against peers: each program alternates our engine and another one on the same work and prints ratios.

The peers (PyTorch, CTranslate2) are installed by `make bench`, never by the packages. RESULTS.md has the current
figures, HISTORY.md all measurements.
"""
