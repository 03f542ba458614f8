"""The kernels, one file per formula: the reference first, then the versions that are fast on an engine.

`softmax.py` is a plain one; `dropout_residual_norm.py` shows a fused one, `cross_entropy.py` the most rewarding one.
Conventions: `g` is the gradient of the output, `gx` that of the input `x`; a kernel `f`, which returns its output and
what it saves, and its gradient `f_grad` stand in one file; kernels assume valid input, the operations above them check
it.
"""
