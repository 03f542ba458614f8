"""The book: twelve chapters through the real code, each with an exercise that is checked. `python -m book` begins.

`files.py` finds chapters, exercises and the learner's copies, and reads a file without running it; `judging.py` runs it
through the stages of its exercise; `exercise.py` is what a `check.py` is written with; `pages.py` runs a chapter and
holds its quotations to the files they are from; `__main__.py` is the command.
"""
