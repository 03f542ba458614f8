"""The kernels, one file per formula: the reference first, then the fast versions for each array library.

`softmax.py` is a simple example, `dropout_residual_norm.py` a fused one, and `cross_entropy.py` the most elaborate.
Conventions: `g` is the gradient of the output and `gx` the gradient of the input `x`. A kernel `f` returns its output
and the values it saves for backward; its gradient `f_grad` is in the same file. Operations check their arguments before
they call a kernel. The kernels check only what would silently corrupt their results.
"""
