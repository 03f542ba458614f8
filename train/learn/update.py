"""One update: the gradient of its micro-batches, then Adam; and what happens where memory runs out.

Of several ranks each computes its share of the micro-batches, and all get the gradient of all of them.

The gradient of the mean loss over all target tokens, times the loss scale, is added up parameter by parameter; Adam
divides by the scale and clips in its own pass. The device is waited for once an update: the losses and the norm are
read together, after the last backward, and nothing is moved unless they are finite.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import npx
from autograd import no_grad, saved_arrays
from models import FlatParameters
from train.errors import UserError
from train.learn.anomaly import SUM_ALONE, first_anomaly, unwarned
from train.learn.graphs import Graphs
from train.learn.optimizer import Adam, LossScale, clip_factor
from train.learn.parallel.plan import WorkShare, whole
from train.learn.parallel.reducer import gradient_of
from train.run.keys import TrainSection
from train.run.report import Notes, RunReport
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
        report: RunReport | Notes,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        self.task, self.model, self.settings, self.report, self.meanwhile = task, model, settings, report, meanwhile
        t, precision = settings, npx.precision_named(settings.precision)
        if t.recompute:
            model.enable_gradient_checkpointing()
        self.flat = FlatParameters(model, precision.compute_dtype if precision.is_mixed else None)
        self.world = npx.distributed.world()
        wire_dtype = None if t.reduce_dtype == "float32" else npx.precision_named(t.reduce_dtype).compute_dtype
        self.own = gradient_of(self.flat, self.world, t.shard, wire_dtype)
        self.adam = Adam(self.flat, t.beta1, t.beta2, t.adam_eps, t.weight_decay, t.adam_eps_inside)
        self.scale = LossScale(dynamic=precision.needs_loss_scaling)
        self.graphs = Graphs(model, t, report.line) if t.graphs and npx.device() == "cuda" else None
        self.draws: int | None = None  # of dropout, for a micro-batch: for each the same number
        self.losses: list[float] = []  # of the micro-batches of the last gradient, of all ranks

    def gradient(self, micro: Sequence[Any], step: int, share: WorkShare | None = None) -> tuple[float, float]:
        """Leaves the gradient of micro-batches with the parameters; returns their mean loss and the gradient's norm.

        `share`: what of the whole update `micro` is; None: all of it. Loss, norm and gradient are those of all ranks
        (where `train.shard` splits it, the gradient of this rank's parts).
        Where memory runs out it is formed once more from halves of the micro-batches: the same sum, but for rounding
        and for other draws of dropout. UserError where that is too much as well, or where other ranks have begun to
        add it to theirs.
        """
        share, halved = share or whole(micro), False
        while True:
            try:
                return self._gradient(micro, share, step)
            except MemoryError:
                found = self.out_of_memory(micro, step)  # while the traceback keeps the graph
            smaller = [half for batch in micro for half in batch.halves()]
            if halved or len(smaller) == len(micro) or self.own.begun:
                raise UserError(found)
            npx.free_memory()
            self.report.metrics({"kind": "halved", "step": step, "micro_batches": len(smaller)})
            self.report.line(f"{found}; this update is made of {len(smaller)} halves")
            share = share.of_halves([len(batch.halves()) for batch in micro])
            micro, halved = smaller, True

    def _gradient(self, micro: Sequence[Any], share: WorkShare, step: int) -> tuple[float, float]:
        self.flat.zero_grad()
        self.own.begin()
        losses = []
        with npx.keyed(self.settings.seed, step), unwarned():
            for number, batch in zip(share.numbers, micro, strict=True):
                ready = self.own.ready if number == share.numbers[-1] else None
                with self._draws(step, number, batch):
                    losses.append(self._loss(batch, share.targets, ready))
            numbers = npx.stack([*losses, self.own.square()])
            self.meanwhile()
            *losses, square = npx.to_host(numbers).tolist()
        told = self.world.gather(([*zip(share.numbers, losses, strict=True)], square))
        found = sorted((one for part, _ in told for one in part), key=lambda one: one[0] % share.all)
        self.losses = [sum(loss for n, loss in found if n % share.all == i) for i in range(share.all)]
        return sum(loss for _, loss in found), math.sqrt(sum(square for _, square in told)) / self.scale.value

    def _draws(self, step: int, number: int, batch: Any) -> AbstractContextManager[None]:
        """Dropout draws for micro-batch `number` what one process, which does all of them in order, draws for it."""
        if self.world.size == 1:
            return nullcontext()
        if self.draws is None:
            self.draws = self._counted_draws(batch)
        return npx.keyed(self.settings.seed, step, first_call=number * self.draws)

    def _counted_draws(self, batch: Any) -> int:
        while len(halves := batch.halves()) > 1:
            batch = halves[0]
        with npx.keyed(0, 0), npx.random.record_keys() as noted, no_grad():
            self.task.loss(self.model, batch)
        return len(noted)

    def optimizer_state(self) -> dict[str, Any]:
        """What Adam remembers of the whole buffer, on the host; on rank 0. All ranks take part."""
        state = self.adam.state_dict()
        return state | {name: self.own.whole(state[name]) for name in ("m", "v")}

    def weights(self) -> dict[str, npx.Array]:
        """What is learned, by name, on the host; on rank 0. All ranks take part."""
        flat = self.flat
        whole = None if flat.data.size == flat.size else self.own.whole(npx.to_host(flat.data))
        if self.world.rank:
            return {}
        if whole is None:
            return dict(self.model.state_dict())
        places = zip(flat.parameters, flat.spans.items(), strict=True)
        return {name: whole[span].reshape(p.shape) for p, (name, span) in places}

    def load_weights(self, state: Mapping[str, npx.Array]) -> None:
        """Takes back what `weights` gave; ValueError, before anything is changed, where they are another model's."""
        self.model.load_state_dict(state)
        if self.flat.data.size < self.flat.size:
            whole = npx.host.concatenate([state[name].reshape(-1) for name in self.flat.spans])
            self.flat.data[...] = npx.from_host(self.own.own(whole))

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Takes back what `optimizer_state` gave; ValueError where the size is another model's."""
        if self.own.shards and all(state[name].shape == (self.flat.size,) for name in ("m", "v")):
            state = state | {name: self.own.own(state[name]) for name in ("m", "v")}
        self.adam.load_state_dict(state)

    def _loss(self, batch: Any, targets: int, ready: Any) -> npx.Array:
        """The loss () of a micro-batch as its share of the update's, on the device; its gradient is added up."""
        if self.graphs:
            return self.graphs.loss(self.task.sequences(batch), targets, self.scale.value)
        return self._backward(batch, targets, ready)

    def _backward(self, batch: Any, targets: int, ready: Any = None) -> npx.Array:
        """Adds a micro-batch's gradient; its loss, of `targets` tokens in the whole update. `ready`: see `backward`."""
        t = self.settings
        how = {
            "label_smoothing": t.label_smoothing, "smoothing_classes": t.smoothing_over, "loss_normalizer": targets
        }  # fmt: skip
        loss = self.task.loss(self.model, batch, **how)
        loss.backward(self.scale.value, ready)
        return loss.data

    def blame(
        self, micro: Sequence[Any], step: int, debug: bool, share: WorkShare | None = None
    ) -> tuple[list[int], str]:
        """Which micro-batches, by their numbers, a gradient that is not finite is from, and the first operation.

        That is looked for with `debug` alone: the gradient is formed again.
        """
        share = share or whole(micro)
        if debug:
            number, found = min(self.world.gather(self._first_anomaly(micro, share, step)))
            if found:
                return [number], found
        bad = [number for number, loss in enumerate(self.losses) if not math.isfinite(loss)]
        return bad or [*range(share.all)], SUM_ALONE if debug else ""

    def _first_anomaly(self, micro: Sequence[Any], share: WorkShare, step: int) -> tuple[int, str]:
        self.flat.zero_grad()
        with npx.keyed(self.settings.seed, step), unwarned():
            for number, batch in zip(share.numbers, micro, strict=True):
                with self._draws(step, number, batch):
                    if found := first_anomaly(partial(self._backward, batch, share.targets)):
                        return number, found
        return share.all, ""

    def apply(self, lr: float, norm: float) -> None:
        """Moves the weights by the gradient that was left, whose norm is `norm`."""
        self.adam.step(lr, clip_factor(norm, self.settings.clip_norm) / self.scale.value)
        self.own.spread()
        self.scale.succeeded()

    def out_of_memory(self, micro: Sequence[Any], step: int) -> str:
        """One line: what was computed, what fills the memory, what to lower."""
        t, use = self.settings, npx.memory_use()
        largest = max(micro, key=lambda batch: batch.shape).describe()
        flat, adam = self.flat, self.adam
        arrays = flat.data, flat.low_precision, adam.m, adam.v
        gradients = flat.size * flat.data.itemsize  # wherever they lie
        own = (sum(a.nbytes for a in arrays if a is not None) + gradients) / 2**20
        kept = "; ".join(map(str, saved_arrays()[:3])) or "nothing yet"
        less = "" if t.recompute else ", or train.recompute = true, which is slower and changes no bit"
        gpu = f", {use.used / GIB:.1f} of the GPU's {use.total / GIB:.1f} GiB in arrays" if use else ""
        return (
            f"memory, step {step}: expected room for {largest} (train.batch_tokens = {t.batch_tokens});"
            f" got too little{gpu}; kept for the gradient, first of all: {kept}; for weights, "
            f"gradients and moments: {own:,.1f} MiB; try train.batch_tokens = {max(1, t.batch_tokens // 2)} with "
            f"train.accumulate = {2 * t.accumulate}: updates of the same size in half the memory{less}"
        )
