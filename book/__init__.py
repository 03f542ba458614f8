"""The book: thirteen chapters that walk through the real code, each with an exercise. Start with `python -m book`.

`files.py` locates chapters, exercises and the learner's answers, and checks an answer statically. `judging.py` runs an
answer through the stages of its exercise, with `results.py`. `hints.py` recognizes mistakes, with `slips.py` (and
`slip_variants.py`) and `relations.py`. `exercise.py` has the building blocks of a `check.py`. `pages.py` runs a chapter
and compares its output and quotations. `__main__.py` is the command.
"""
