"""Mutation testing for gradients: what `python -m autograd.testing mutate` (mutate.py) is made of.

`backward_code.py` finds what runs on the way back alone, `rules.py` has the standard mistakes, `planting.py` plants
them in a module's text, `running.py` runs the tests on each such text, through `planted.py`, a script of its own.
"""
