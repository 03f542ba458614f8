"""Mutation testing of gradients: the parts of `python -m autograd.testing mutate` (mutate.py).

`backward_code.py` finds the code that runs only in the backward pass, `operators.py` defines the mutation operators,
`mutator.py` applies them to the source of a module, and `runner.py` runs the tests on each mutant through the script
`planted.py`.
"""
