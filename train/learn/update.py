"""One update: the gradient of its micro-batches, then Adam; and what happens where memory runs out.

The gradient of the mean loss over all target tokens, times the loss scale, is added up in the flat buffer; Adam divides
by the scale and clips in its own pass. The device is waited for once an update: the losses and the norm are read
together, after the last backward, and nothing is moved unless they are finite.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import npx
from autograd import kept_arrays
from models import FlatParameters
from train.errors import UserError
from train.learn.anomaly import SUM_ALONE, first_anomaly, unwarned
from train.learn.graphs import Graphs
from train.learn.optim import Adam, LossScale, clip_factor, squared_norm
from train.run.keys import TrainSection
from train.run.report import RunReport
from train.tasks import Task

GIB = 2**30


class Update:
    """Makes the updates of a model: `gradient`, then `apply` where it was finite.

    The parameters are laid out in a flat buffer, with a rounded copy where `settings.precision` computes with one.
    `meanwhile` is called when all of a gradient is under way and the host would only wait.
    """

    def __init__(
        self,
        task: Task,
        model: Any,
        settings: TrainSection,
        report: RunReport,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        self.task, self.model, self.settings, self.report, self.meanwhile = task, model, settings, report, meanwhile
        t, precision = settings, npx.precision_named(settings.precision)
        if t.recompute:
            model.recompute()
        self.flat = FlatParameters(model, precision.numbers if precision.low else None)
        self.adam = Adam(self.flat, t.beta1, t.beta2, t.adam_eps, t.weight_decay, t.adam_eps_inside)
        self.scale = LossScale(dynamic=precision.scaled)
        self.graphs = Graphs(model, t, report.line) if t.graphs and npx.device() == "cuda" else None
        self.losses: list[float] = []  # of the micro-batches of the last gradient

    def gradient(self, micro: Sequence[Any], step: int) -> tuple[float, float]:
        """Leaves the gradient of micro-batches in the flat buffer; returns their mean loss and the gradient's norm.

        Where memory runs out it is formed once more from halves of the micro-batches: the same sum, but for rounding
        and for other draws of dropout. UserError where that is too much as well.
        """
        targets, halved = sum(batch.n_target_tokens for batch in micro), False
        while True:
            try:
                return self._gradient(micro, targets, step)
            except MemoryError:
                found = self.out_of_memory(micro, step)  # while the traceback keeps the graph
            smaller = [half for batch in micro for half in batch.halves()]
            if halved or len(smaller) == len(micro):
                raise UserError(found)
            npx.free_memory()
            self.report.metrics({"kind": "halved", "step": step, "micro_batches": len(smaller)})
            self.report.line(f"{found}; this update is made of {len(smaller)} halves")
            micro, halved = smaller, True

    def _gradient(self, micro: Sequence[Any], targets: int, step: int) -> tuple[float, float]:
        self.flat.zero_grad()
        with npx.keyed(self.settings.seed, step), unwarned():
            losses = [self._loss(batch, targets) for batch in micro]
            numbers = npx.stack([*losses, squared_norm(self.flat)])
            self.meanwhile()
            *self.losses, square = npx.to_host(numbers).tolist()
        return sum(self.losses), math.sqrt(square) / self.scale.value

    def _loss(self, batch: Any, targets: int) -> npx.Array:
        """The loss () of a micro-batch as its share of the update's, on the device; its gradient is added up."""
        if self.graphs:
            return self.graphs.loss(self.task.sequences(batch), targets, self.scale.value)
        return self._backward(batch, targets)

    def _backward(self, batch: Any, targets: int) -> npx.Array:
        """Adds a micro-batch's gradient; its loss, of `targets` tokens in the whole update."""
        t = self.settings
        how = {"smoothing": t.label_smoothing, "smoothing_over": t.smoothing_over, "normalizer": targets}
        loss = self.task.loss(self.model, batch, **how)
        loss.backward(self.scale.value)
        return loss.data

    def blame(self, micro: Sequence[Any], step: int, debug: bool) -> tuple[Sequence[int], str]:
        """Which micro-batches, by their numbers, a gradient that is not finite is from, and the first operation.

        That is looked for with `debug` alone: the gradient is formed again.
        """
        number = range(len(micro))
        if debug:
            targets = sum(batch.n_target_tokens for batch in micro)
            self.flat.zero_grad()
            with npx.keyed(self.settings.seed, step), unwarned():
                for i in number:
                    if found := first_anomaly(partial(self._backward, micro[i], targets)):
                        return [i], found
        known = len(self.losses) == len(micro)  # or it was made of halves
        bad = [i for i in number if known and not math.isfinite(self.losses[i])]
        return bad or number, SUM_ALONE if debug else ""

    def apply(self, lr: float, norm: float) -> None:
        """Moves the weights by the gradient in the flat buffer, whose norm is `norm`."""
        self.adam.step(lr, clip_factor(norm, self.settings.clip_norm) / self.scale.value)
        self.scale.succeeded()

    def out_of_memory(self, micro: Sequence[Any], step: int) -> str:
        """One line: what was computed, what fills the memory, what to lower."""
        t, use = self.settings, npx.memory_use()
        largest = max(micro, key=lambda batch: batch.shape).describe()
        flat, adam = self.flat, self.adam
        own = sum(a.nbytes for a in (flat.data, flat.low, flat.grad, adam.m, adam.v) if a is not None) / 2**20
        kept = "; ".join(map(str, kept_arrays()[:3])) or "nothing yet"
        less = "" if t.recompute else ", or train.recompute = true, which is slower and changes no bit"
        gpu = f", {use.used / GIB:.1f} of the GPU's {use.total / GIB:.1f} GiB in arrays" if use else ""
        return (
            f"memory, step {step}: expected room for {largest} (train.batch_tokens = {t.batch_tokens});"
            f" got too little{gpu}; kept for the gradient, first of all: {kept}; for weights, "
            f"gradients and moments: {own:,.1f} MiB; try train.batch_tokens = {max(1, t.batch_tokens // 2)} with "
            f"train.accumulate = {2 * t.accumulate}: updates of the same size in half the memory{less}"
        )
