"""Wrap functions of other frameworks as operations, so that the gradient checker can test their backward passes.

    from autograd.testing import check_operation, from_pair, from_torch

    check_operation(from_pair(affine_forward, affine_backward), x, w, b)
    check_operation(from_torch(MyFunction.apply), x)

    base.py     `ForeignOperation`: what all adapters share
    pair.py     from_pair, for two NumPy functions; cupy.py: from_cupy, for two CuPy functions
    torch.py    from_torch, for PyTorch: functions, `autograd.Function` and modules
    jax.py      from_jax, for JAX functions; jaxpr.py evaluates them in NumPy, without compiling
    guess.py    guesses inputs that a function accepts
    discover.py chooses the adapter for an object: `check_gradient`; finds the custom gradients of a module

A framework is imported by the first call to its adapter.
"""
