"""The book: thirteen chapters that walk through the real code, each with an exercise. Start with `python -m book`.

`files.py` locates chapters, exercises and the learner's answers, and checks an answer without running it. `judging.py`
and `results.py` run an answer through the stages of its exercise. `hints.py`, `slips.py`, `slip_variants.py` and
`relations.py` recognize mistakes. `exercise.py` has the building blocks of a `check.py`. `pages.py` runs a chapter and
compares its output and quotations. `__main__.py` is the command.
"""
