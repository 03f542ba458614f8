"""How the weights move: Adam over one flat buffer, the learning-rate schedule, loss scaling, clipping by the norm.

All parameters of a model are views into one flat array, as all gradients may be (models.FlatParameters). So an update
is a call of the kernel `npx.adam` for each piece of the gradient, which also unscales and clips, and the norm a sum of
dot products.
"""

import math
from typing import Any

import npx
from models import FlatParameters, Module
from npx.ranges import Range
from train.files import Schema
from train.run.state import COUNT

PART = 1 << 17  # gradients whose squares are added up in float32
POSITIVE = Range(float, "(0, 1e38]")


class NoamSchedule:
    """The learning rate of update `step` (section 5.3): linear warm-up, then decay with the inverse square root.

        lr = lr_scale d_model^-0.5 min(step^-0.5, step warmup_steps^-1.5)

    step = 1, 2, ... counts updates, whatever the number of micro-batches in one. There is no state: the same step
    always gives the same rate. Raises ValueError for a step below 1.
    """

    def __init__(self, d_model: int, warmup_steps: int = 4000, lr_scale: float = 1.0) -> None:
        if d_model < 1 or warmup_steps < 1:
            raise ValueError(
                f"NoamSchedule: expected d_model >= 1 and warmup_steps >= 1; got d_model={d_model}, "
                f"warmup_steps={warmup_steps}; try warmup_steps=4000"
            )
        if not (lr_scale > 0 and math.isfinite(lr_scale)):
            raise ValueError(f"NoamSchedule: expected a finite lr_scale > 0; got {lr_scale}; try 1.0")
        self.d_model, self.warmup_steps, self.lr_scale = d_model, warmup_steps, lr_scale

    def __call__(self, step: int) -> float:
        """The learning rate of update number `step`, which counts from 1."""
        if step < 1:
            raise ValueError(
                f"NoamSchedule: expected a step >= 1 (the first update is step 1); got {step}; try step + 1"
            )
        return self.lr_scale * self.d_model**-0.5 * min(step**-0.5, step * self.warmup_steps**-1.5)


class Adam:
    """Adam (Kingma and Ba, 2015; section 5.3) over the flat buffer of a model, a call for each piece of gradient.

        m = beta1 m + (1 - beta1) g        mhat = m / (1 - beta1^step)
        v = beta2 v + (1 - beta2) g^2      vhat = v / (1 - beta2^step)
        p = p - lr (mhat / (sqrt(vhat) + eps) + weight_decay p)

    `eps_inside` adds eps before the bias correction instead (TensorFlow, fairseq). `model` may be its FlatParameters;
    what of them is learned here is moved, and m and v are of that, one part after the other. Raises ValueError for
    hyper-parameters out of range.
    """

    def __init__(
        self,
        model: Module | FlatParameters,
        beta1: float = 0.9,
        beta2: float = 0.98,
        eps: float = 1e-9,
        weight_decay: float = 0.0,
        eps_inside: bool = False,
    ) -> None:
        if not (0.0 <= beta1 < 1.0 and 0.0 <= beta2 < 1.0):
            raise ValueError(f"Adam: expected 0 <= beta < 1; got beta1={beta1}, beta2={beta2}; try 0.9 and 0.98")
        if not (eps > 0.0 and weight_decay >= 0.0):  # with eps 0 a gradient that was always 0 is 0 / 0
            raise ValueError(
                f"Adam: expected eps > 0 and weight_decay >= 0; got eps={eps}, weight_decay={weight_decay}; "
                f"try 1e-9 and 0"
            )
        self.flat = model if isinstance(model, FlatParameters) else FlatParameters(model)
        self.options = beta1, beta2, eps, weight_decay, eps_inside
        self.m = npx.zeros(self.flat.n_local, self.flat.data.dtype)  # (P,)
        self.v = npx.zeros(self.flat.n_local, self.flat.data.dtype)  # (P,)
        self.steps = 0  # updates done

    def step(self, lr: float, scale: float = 1.0) -> None:
        """Moves all that is learned here once, by the gradients that there are now times `scale`.

        ValueError for a rate that is negative or not finite.
        """
        if not 0.0 <= lr < float("inf"):
            raise ValueError(f"Adam: expected a rate of 0 or above, finite; got {lr}; try 1e-4")
        self.flat.check()
        self.flat.mark_updated()
        self.steps += 1
        numbers = npx.adam_step(self.steps, lr, *self.options, scale)
        start = 0
        for weights, g, low in self.flat.update_chunks():
            own = slice(start, start := start + g.size)
            if g.size:
                npx.adam(weights, g, self.m[own], self.v[own], numbers, low)

    def state_dict(self) -> dict[str, Any]:
        """Copies of the moments m and v on the host (P,) and the number of updates done: all that Adam remembers."""
        return {"m": npx.to_host(self.m).copy(), "v": npx.to_host(self.v).copy(), "step": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what state_dict gave; raises ValueError where the size is another model's."""
        for name, moment in (("m", self.m), ("v", self.v)):
            if state[name].shape != moment.shape:
                raise ValueError(
                    f"Adam: expected {moment.size} numbers in {name!r}; got shape {state[name].shape}; "
                    "try the checkpoint of a model of this size"
                )
        self.m[...] = npx.asarray(state["m"], dtype=self.m.dtype)
        self.v[...] = npx.asarray(state["v"], dtype=self.v.dtype)
        self.steps = int(state["step"])


class LossScale:
    """The factor on the loss before backward that keeps gradients within fp16 (Micikevicius et al., 2018, section 3.2).

    fp16 ends at 65,504 and has nothing below 6e-8, where many gradients lie. So the factor begins high, is halved where
    an update overflowed (which is then not made), and doubled after PATIENCE good updates in a row. A power of two
    rounds nothing. Not `dynamic`, for every other precision: 1, for good.
    """

    SCHEMA: Schema = {"value": POSITIVE, "good": COUNT, "skipped": COUNT}  # of what it remembers
    START = 2.0**16
    PATIENCE = 2000

    def __init__(self, dynamic: bool = False) -> None:
        self.dynamic = dynamic
        self.value = self.START if dynamic else 1.0
        self.good = 0  # updates since the last change
        self.skipped = 0  # updates that were not made

    def succeeded(self) -> None:
        """After an update that was made."""
        self.good += 1
        if self.dynamic and self.good == self.PATIENCE:
            self.value, self.good = self.value * 2, 0

    def overflowed(self) -> bool:
        """After one that overflowed: whether a smaller factor may help; none below 1 does."""
        if self.value <= 1:
            return False
        self.value, self.good, self.skipped = self.value / 2, 0, self.skipped + 1
        return True

    def state_dict(self) -> dict[str, Any]:
        """All that it remembers."""
        return {"value": self.value, "good": self.good, "skipped": self.skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what state_dict gave."""
        self.value, self.good, self.skipped = float(state["value"]), int(state["good"]), int(state["skipped"])


def squared_norm(flat: FlatParameters) -> npx.Array:
    """sum g^2 over all gradients (), on the device; inf or NaN where one is, or where the sum overflows."""
    return npx.sum(npx.stack([square(g) for _, g in flat.gradient_chunks()]))


def square(g: npx.Array) -> npx.Array:
    """sum g^2 () of g (n,), in float64 on a CPU: its BLAS adds up to 19 million float32 one after the other.

    So parts of them, whose sums have all their digits. A GPU adds in a tree, and each part would be a launch.
    """
    if not isinstance(g, npx.ndarray):
        return g @ g
    parts = (g[i : i + PART] for i in range(0, len(g), PART))
    return npx.host.array(sum(float(part @ part) for part in parts))


def clip_factor(norm: float, max_norm: float) -> float:
    """What gradients of Euclidean norm `norm` are multiplied by so that it is at most max_norm; 0 clips nothing.

    The paper does not clip. A norm that is not finite clips nothing either: such an update is not to be made.
    """
    return max_norm / norm if max_norm > 0 and math.isfinite(norm) and norm > max_norm else 1.0
