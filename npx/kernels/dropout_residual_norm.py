"""LayerNorm(residual + Dropout(x)), which surrounds every sub-layer of the post-norm Transformer (section 5.4).

The fused kernel makes one pass instead of three: on a CPU a block of rows stays in cache from the dropout to the
normalized output; on a GPU each row is read and written once.
"""

from npx.backend import NO_ACCUMULATORS, Accumulators, Array
from npx.dispatch import Output, kernel
from npx.kernels import layer_norm as norms
from npx.kernels.dropout import DropoutSpec, dropout, dropout_grad


@kernel
def dropout_residual_norm(
    x: Array, residual: Array, gamma: Array, beta: Array, drop: DropoutSpec | None = None, eps: float = 1e-6
) -> Output:
    """Return y = layer_norm(residual + dropout(x)).

    x, residual (..., D); gamma, beta (D,). Saved: what layer_norm saves; drop, keep_mask (bool (..., D), or None).
    """
    norms.check_residual(x, residual)
    x_dropped, saved_dropout = dropout.reference(x, drop)
    y, saved = norms.layer_norm.reference(residual + x_dropped, gamma, beta, eps)
    return y, (*saved, *saved_dropout)


@dropout_residual_norm.define_gradient
def dropout_residual_norm_grad(
    g: Array,
    gamma: Array,
    xhat: Array,
    rstd: Array,
    drop: DropoutSpec | None,
    keep_mask: Array | None,
    accumulate_into: Accumulators = NO_ACCUMULATORS,
) -> tuple[Array, Array, Array, Array]:
    """Return the gradients (gx, gresidual, ggamma, gbeta) of `dropout_residual_norm`.

    gresidual is the gradient of the layer norm's input, and gx is `dropout_grad` of gresidual.

    Args:
        accumulate_into: arrays to which ggamma and gbeta are added, or None for new arrays.
    """
    gresidual, ggamma, gbeta = norms.layer_norm_grad.reference(g, gamma, xhat, rstd, accumulate_into)
    return dropout_grad.reference(gresidual, drop, keep_mask), gresidual, ggamma, gbeta


# A layer norm is this kernel without residual and dropout, so layer_norm.py has the fast versions of both.
dropout_residual_norm.fast("numpy", "float32", "float64")(norms.residual_norm_numpy)
dropout_residual_norm_grad.fast("numpy", "float32", "float64")(norms.residual_norm_grad_numpy)
dropout_residual_norm.fast("cupy", "float32", "float16", "bfloat16")(norms.residual_norm_cuda)
dropout_residual_norm_grad.fast("cupy", "float32", "float16", "bfloat16")(norms.residual_norm_grad_cuda)
