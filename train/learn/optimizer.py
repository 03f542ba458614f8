"""Adam over one flat buffer, the learning-rate schedule, loss scaling, and clipping by the global norm.

All parameters of a model are views of one flat array (models.FlatParameters). Gradients are separate arrays until
`FlatParameters.flatten_grad` moves them into one array too. An update calls the kernel `npx.adam` once for each
contiguous part of the gradients. The kernel also unscales and clips them, so that no separate pass is needed.
"""

import math
from typing import Any

import npx
from models import FlatParameters, Module
from npx.ranges import Range
from train.json_files import Schema
from train.run.state import COUNT

CHUNK = 1 << 17  # number of squares in each float32 sum; these sums are added in float64
POSITIVE = Range(float, "(0, 1e38]")


class NoamSchedule:
    """The learning rate of section 5.3: linear warmup, then inverse square root decay.

        lr(step) = lr_scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)

    The schedule has no state: `schedule(step)` depends only on the step.

    Args:
        d_model: the model size D, at least 1.
        warmup_steps: number of updates until the highest rate, at least 1. Default 4000.
        lr_scale: multiplier of the learning rate, above 0. Default 1.

    Raises ValueError for an argument out of range.
    """

    def __init__(self, d_model: int, warmup_steps: int = 4000, lr_scale: float = 1.0) -> None:
        if d_model < 1:
            raise ValueError(f"NoamSchedule: expected d_model >= 1; got {d_model}; try model.config.d_model")
        if warmup_steps < 1:
            raise ValueError(f"NoamSchedule: expected warmup_steps >= 1; got {warmup_steps}; try 4000")
        if not (lr_scale > 0 and math.isfinite(lr_scale)):
            raise ValueError(f"NoamSchedule: expected a finite lr_scale > 0; got {lr_scale}; try 1.0")
        self.d_model, self.warmup_steps, self.lr_scale = d_model, warmup_steps, lr_scale

    def __call__(self, step: int) -> float:
        """Return the learning rate of update `step`. The first update is step 1. Raises ValueError for a lower step."""
        if step < 1:
            raise ValueError(f"NoamSchedule: expected a step >= 1; got {step}; try counting updates from 1")
        return self.lr_scale * self.d_model**-0.5 * min(step**-0.5, step * self.warmup_steps**-1.5)


class Adam:
    """Adam (Kingma and Ba, 2015; section 5.3) with decoupled weight decay (AdamW; Loshchilov and Hutter, 2019).

        m = beta1 * m + (1 - beta1) * g        mhat = m / (1 - beta1^step)
        v = beta2 * v + (1 - beta2) * g^2      vhat = v / (1 - beta2^step)
        p = p - lr * (mhat / (sqrt(vhat) + eps) + weight_decay * p)

    Args:
        model: a module, whose parameters are moved into a flat buffer, or its FlatParameters. If the buffer is sharded,
            only the local shard is updated, and `m` and `v` have the size of the shard.
        beta1: decay of the mean of the gradients, in [0, 1). Default 0.9.
        beta2: decay of the mean of the squared gradients, in [0, 1). Default 0.98.
        eps: added to the denominator, above 0. Default 1e-9.
        weight_decay: the rate of weight decay, at least 0. Default 0, as in the paper.
        eps_before_correction: whether to add eps to sqrt(v) before the bias correction, as TensorFlow and fairseq
            do. Default False.

    Attributes:
        m, v: the moments (P,), in the dtype of the weights, on the device.
        steps: the number of updates so far.

    Raises ValueError for a hyperparameter out of range.
    """

    def __init__(
        self,
        model: Module | FlatParameters,
        beta1: float = 0.9,
        beta2: float = 0.98,
        eps: float = 1e-9,
        weight_decay: float = 0.0,
        eps_before_correction: bool = False,
    ) -> None:
        if not (0.0 <= beta1 < 1.0 and 0.0 <= beta2 < 1.0):
            raise ValueError(f"Adam: expected 0 <= beta < 1; got beta1={beta1}, beta2={beta2}; try 0.9 and 0.98")
        if not (eps > 0.0 and weight_decay >= 0.0):  # eps = 0 would give 0 / 0 if all gradients of a weight are 0
            raise ValueError(
                f"Adam: expected eps > 0 and weight_decay >= 0; got eps={eps}, weight_decay={weight_decay}; "
                f"try 1e-9 and 0"
            )
        self.flat = model if isinstance(model, FlatParameters) else FlatParameters(model)
        self.options = beta1, beta2, eps, weight_decay, eps_before_correction
        self.m = npx.zeros(self.flat.n_local, self.flat.data.dtype)  # (P,)
        self.v = npx.zeros(self.flat.n_local, self.flat.data.dtype)  # (P,)
        self.steps = 0

    def zero_grad(self) -> None:
        """Reset all gradients, to None or, if they share one array, to zero. Call this before every update."""
        self.flat.zero_grad()

    def step(self, lr: float, grad_scale: float = 1.0) -> None:
        """Update the weights once, with the learning rate `lr` and the current gradients times `grad_scale`.

        A gradient that is NaN or infinite makes its weight and moments NaN permanently. Gradients are not checked here,
        because that would take an extra pass over them. Check first that their norm is finite, as the training loop
        does. The norm is the square root of `train.learn.optimizer.squared_norm(adam.flat)`.

        Raises ValueError if `lr` is negative or not finite.
        """
        if not 0.0 <= lr < float("inf"):
            raise ValueError(f"Adam: expected a finite learning rate >= 0; got {lr}; try 1e-4")
        self.flat.check_views()
        self.flat.mark_updated()
        self.steps += 1
        scalars = npx.adam_coefficients(self.steps, lr, *self.options, grad_scale)
        start = 0
        for weights, g, low in self.flat.update_chunks():
            part = slice(start, start := start + g.size)
            if g.size:
                npx.adam(weights, g, self.m[part], self.v[part], scalars, low)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of m and v (P,) on the host, and the number of updates as "step"."""
        return {"m": npx.to_host(self.m).copy(), "v": npx.to_host(self.v).copy(), "step": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a result of `state_dict`. Raises ValueError for the state of a model of a different size."""
        for name, moment in (("m", self.m), ("v", self.v)):
            if state[name].shape != moment.shape:
                raise ValueError(
                    f"Adam: expected {name!r} of shape {moment.shape}; got {state[name].shape}; "
                    "try a checkpoint of a model with the same configuration"
                )
        self.m[...] = npx.asarray(state["m"], dtype=self.m.dtype)
        self.v[...] = npx.asarray(state["v"], dtype=self.v.dtype)
        self.steps = int(state["step"])


class LossScale:
    """The factor on the loss that keeps fp16 gradients in range (Micikevicius et al., 2018, section 3.2).

    The largest fp16 number is 65,504, and the smallest positive one is 6e-8. Many gradients are smaller. The factor
    starts high. It is halved when a gradient overflows (the update is then skipped), and doubled after PATIENCE
    consecutive updates without an overflow. It is a power of two, so scaling does not round. For other precisions
    (`dynamic` is False), it is always 1.
    """

    SCHEMA: Schema = {"value": POSITIVE, "good": COUNT, "skipped": COUNT}  # schema of its state_dict
    START = 2.0**16
    PATIENCE = 2000

    def __init__(self, dynamic: bool = False) -> None:
        self.dynamic = dynamic
        self.value = self.START if dynamic else 1.0
        self.updates_since_change = 0
        self.skipped = 0

    def record_update(self) -> None:
        """Record a completed update."""
        self.updates_since_change += 1
        if self.dynamic and self.updates_since_change == self.PATIENCE:
            self.value *= 2
            self.updates_since_change = 0

    def reduce_after_overflow(self) -> bool:
        """Halve the factor after an overflow. If it is already at most 1, leave it unchanged and return False."""
        if self.value <= 1:
            return False
        self.value /= 2
        self.updates_since_change = 0
        self.skipped += 1
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state."""
        return {"value": self.value, "good": self.updates_since_change, "skipped": self.skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.value = float(state["value"])
        self.skipped = int(state["skipped"])
        self.updates_since_change = int(state["good"])


def squared_norm(flat: FlatParameters) -> npx.Array:
    """Return the sum of g^2 over all gradients, on the device: NaN or infinite if a g is not finite or too large."""
    return npx.sum(npx.stack([sum_of_squares(g) for _, g in flat.gradient_chunks()]))


def sum_of_squares(g: npx.Array) -> npx.Array:
    """Return the sum of g^2 for g (n,), a scalar on the device.

    On a CPU, BLAS would add all squares one after the other in float32 and lose digits. Therefore, BLAS adds the
    squares of one chunk at a time, and the sums of the chunks are added in float64. A GPU sums in a tree, so it does
    not need chunks.
    """
    if not isinstance(g, npx.ndarray):
        return g @ g
    chunks = (g[i : i + CHUNK] for i in range(0, len(g), CHUNK))
    return npx.host.array(sum(float(chunk @ chunk) for chunk in chunks))


def clip_factor(norm: float, max_norm: float) -> float:
    """Return the factor on the gradients that reduces their global L2 norm `norm` to at most `max_norm`.

    The factor is 1 if `max_norm` is 0, as in the paper, and for a non-finite norm, because that update is skipped.
    """
    return max_norm / norm if max_norm > 0 and math.isfinite(norm) and norm > max_norm else 1.0
