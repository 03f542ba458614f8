"""Speed beside a peer: each program runs our engine and another on the same work, in turn, and prints ratios.

The peers (PyTorch, CTranslate2) are installed by `make bench`, never by the packages. RESULTS.md has the
figures, HISTORY.md their record.
"""
