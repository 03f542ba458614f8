"""One update: the gradient of its micro-batches, then Adam, with a retry in smaller parts when memory runs out.

The micro-batches accumulate the gradient of the mean loss over all target tokens, times the loss scale. The kernel of
Adam removes the scale and clips the gradient. The host waits for the device once per update: losses and norm are read
together after the last backward, and the weights change only if both are finite. With several ranks, each computes its
share of the micro-batches, and all receive the gradient of the complete update.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, cast

import npx
from autograd import Tensor, no_grad, saved_arrays
from models import FlatParameters, Module
from train.errors import UserError
from train.learn.anomaly import NO_OPERATION, first_anomaly, ignore_nonfinite_warnings
from train.learn.cuda_graphs import GraphedLoss
from train.learn.moving_average import MovingAverage
from train.learn.optimizer import Adam, LossScale, clip_factor
from train.learn.parallel.plan import WorkShare, full_share
from train.learn.parallel.reducer import make_reducer
from train.learn.warm_start import freeze
from train.run.keys import TrainSection
from train.run.report import RunReport
from train.tasks import Task
from train.tasks.protocols import Batch, TrainableModel

GIB = 2**30
OnLeafDone = Callable[[Tensor], object]


class Updater:
    """Updates a model. Call `compute_gradient` and, if loss and norm are finite, `apply_gradient`.

    Args:
        task: the task that the model learns.
        model: the model. Its parameters are moved into a flat buffer, with a rounded copy for a 16-bit precision.
        settings: the section [train] of the configuration.
        report: receives a line and a metrics entry when memory runs out.
        while_waiting: called when all work of a gradient is queued on the device and the host would otherwise wait.
    """

    def __init__(
        self,
        task: Task,
        model: TrainableModel,
        settings: TrainSection,
        report: RunReport,
        while_waiting: Callable[[], object] = lambda: None,
    ) -> None:
        self.task, self.model, self.settings, self.report = task, model, settings, report
        self.while_waiting = while_waiting
        precision = npx.precision_named(settings.precision)
        if settings.gradient_checkpointing:
            model.enable_gradient_checkpointing()
        freeze(cast(Module, model), settings.freeze)
        self.flat = FlatParameters(cast(Module, model), precision.compute_dtype if precision.is_mixed else None)
        self.world = npx.distributed.world()
        wire = npx.precision_named(settings.reduce_dtype)
        wire_dtype = None if settings.reduce_dtype == "float32" else wire.compute_dtype
        self.reducer = make_reducer(self.flat, self.world, settings.shard_optimizer, wire_dtype)
        self.adam = Adam(
            self.flat,
            settings.beta1,
            settings.beta2,
            settings.adam_eps,
            settings.weight_decay,
            settings.adam_eps_before_correction,
        )
        self.average = MovingAverage(self.flat, self.reducer, settings.ema_decay) if settings.ema_decay else None
        self.loss_scale = LossScale(dynamic=precision.needs_loss_scaling)
        has_graphs = settings.cuda_graphs and npx.device() == "cuda"
        self.graphed_loss = GraphedLoss(model, settings, report.write_line) if has_graphs else None
        self.dropout_calls: int | None = None  # the number of random keys that each micro-batch uses
        self.losses: list[float] = []  # losses of all micro-batches of the last gradient, on all ranks

    def compute_gradient(
        self, batches: Sequence[Batch], step: int, share: WorkShare | None = None
    ) -> tuple[float, float]:
        """Compute the gradient of micro-batches; return their mean loss and the gradient's L2 norm.

        If memory runs out, the gradient is recomputed from halves of the micro-batches. The sum is the same, except for
        rounding and different dropout masks.

        Args:
            batches: this rank's micro-batches.
            step: the number of the update, from which the dropout masks are derived.
            share: which micro-batches of the update `batches` are; None means all of them. Loss, norm and
                gradient are those of all ranks; with `train.shard_optimizer`, the gradient is limited to this rank's
                shard.

        Raises UserError if the halves do not fit in memory either, or if this rank's gradient has already been sent to
        the other ranks.
        """
        share = share or full_share(batches)
        is_halved = False
        while True:
            try:
                return self._compute_gradient(batches, share, step)
            except MemoryError:
                memory = self.describe_memory(batches)  # must run before the traceback releases the graph
            self.report.write_line(f"step {step:,}: memory ran out: {memory}")
            message = self._out_of_memory_message(step)
            halves = [half for batch in batches for half in batch.halves()]
            if is_halved or len(halves) == len(batches) or self.reducer.has_sent:
                raise UserError(message)
            npx.free_memory()
            self.report.write_metrics({"kind": "halved", "step": step, "micro_batches": len(halves)})
            self.report.write_line(f"{message}; repeating this update with {len(halves)} halves")
            share = share.split([len(batch.halves()) for batch in batches])
            batches = halves
            is_halved = True

    def _compute_gradient(self, batches: Sequence[Batch], share: WorkShare, step: int) -> tuple[float, float]:
        self.adam.zero_grad()
        self.reducer.begin()
        losses = []
        with npx.keyed(self.settings.seed, step), ignore_nonfinite_warnings():
            for index, batch in zip(share.indices, batches, strict=True):
                on_leaf_done = self.reducer.on_leaf_done if index == share.indices[-1] else None
                with self._use_dropout_keys(step, index, batch):
                    losses.append(self._loss(batch, share.n_targets, on_leaf_done))
            results = npx.stack([*losses, self.reducer.squared_norm()])
            self.while_waiting()
            *losses, squared_norm = npx.to_host(results).tolist()
        ranks = self.world.all_gather_object(([*zip(share.indices, losses, strict=True)], squared_norm))
        # The losses of all ranks are added in a fixed order, so the rounding does not depend on the number of ranks.
        indexed = sorted(
            ((share.original_index(index), loss) for losses, _ in ranks for index, loss in losses),
            key=lambda item: item[0],
        )
        self.losses = [sum(loss for index, loss in indexed if index == i) for i in range(share.n_micro_batches)]
        norm = math.sqrt(sum(squared_norm for _, squared_norm in ranks)) / self.loss_scale.value
        return sum(loss for _, loss in indexed), norm

    def _use_dropout_keys(self, step: int, index: int, batch: Batch) -> AbstractContextManager[None]:
        """Return a context in which micro-batch `index` gets the same dropout masks as in a single process."""
        if self.world.size == 1:
            return nullcontext()
        if self.dropout_calls is None:
            self.dropout_calls = self._count_dropout_calls(batch)
        return npx.keyed(self.settings.seed, step, first_call=index * self.dropout_calls)

    def _count_dropout_calls(self, batch: Batch) -> int:
        while len(halves := batch.halves()) > 1:
            batch = halves[0]
        with npx.keyed(0, 0), npx.random.record_keys() as keys, no_grad():
            self.model.loss(*self.task.loss_inputs(batch), **self.settings.loss_options(1))
        return len(keys)

    def optimizer_state(self) -> dict[str, Any]:
        """Return Adam's state for the complete buffer, on the host of rank 0. All ranks must call this method.

        If there is a moving average, `weights` returns the average, so the state includes the weights themselves.
        """
        state = self.adam.state_dict()
        state |= {name: self.reducer.gather_full(state[name]) for name in ("m", "v")}
        return state if self.average is None else state | {"weights": self._gather_weights()}

    def weights(self) -> dict[str, npx.Array]:
        """Return the weights, or their average, by name, on the host of rank 0. All ranks must call this method."""
        with self.use_average():
            if self.flat.data.size == self.flat.size:
                return {} if self.world.rank else dict(self.model.state_dict())
            full = self._gather_weights()
            return {} if self.world.rank else self._by_name(full)

    def use_average(self) -> AbstractContextManager[None]:
        """Return a context in which the moving average, if there is one, replaces the weights."""
        return nullcontext() if self.average is None else self.average.use_average()

    def _gather_weights(self) -> npx.Array:
        """Return the weights of the complete flat buffer, on the host of rank 0."""
        values = npx.to_host(self.flat.data)
        return values if values.size == self.flat.size else self.reducer.gather_full(values)

    def _by_name(self, full: npx.Array) -> dict[str, npx.Array]:
        """Return all weights by name, on the host; those in the flat buffer are taken from `full`."""
        spans = self.flat.spans
        return {
            name: full[spans[name]].reshape(p.shape) if name in spans else npx.to_host(p.weights)
            for name, p in self.flat.module.named_parameters()
        }

    def load_weights(self, state: Mapping[str, npx.Array], trained: npx.Array | None = None) -> None:
        """Restore the result of `weights`.

        If there is a moving average, `state` contains the average, and `trained` the weights themselves, which
        `optimizer_state` returns as "weights".

        Raises ValueError for the weights of a different model; nothing is changed in that case.
        """
        self._set_weights(state)
        if self.average is not None:
            self.average.values[...] = self.flat.data
            if trained is not None:
                self._set_weights({**state, **self._by_name(trained)})

    def _set_weights(self, state: Mapping[str, npx.Array]) -> None:
        self.model.load_state_dict(state)
        if self.flat.data.size < self.flat.size:
            full = npx.host.concatenate([state[name].reshape(-1) for name in self.flat.spans])
            self.flat.data[...] = npx.from_host(self.reducer.local_shard(full))

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `optimizer_state`. Raises ValueError for the state of a model of a different size."""
        if self.reducer.is_sharded and all(state[name].shape == (self.flat.size,) for name in ("m", "v")):
            state = state | {name: self.reducer.local_shard(state[name]) for name in ("m", "v")}
        self.adam.load_state_dict(state)

    def _loss(self, batch: Batch, loss_normalizer: int, on_leaf_done: OnLeafDone | None) -> npx.Array:
        """Return a micro-batch's loss / `loss_normalizer`, a scalar on the device; accumulate its gradient."""
        if self.graphed_loss:
            return self.graphed_loss.loss(self.task.loss_inputs(batch), loss_normalizer, self.loss_scale.value)
        return self._backward(batch, loss_normalizer, on_leaf_done)

    def _backward(self, batch: Batch, loss_normalizer: int, on_leaf_done: OnLeafDone | None = None) -> npx.Array:
        loss = self.model.loss(*self.task.loss_inputs(batch), **self.settings.loss_options(loss_normalizer))
        loss.backward(self.loss_scale.value, on_leaf_done)
        return loss.data

    def locate_nonfinite(
        self, batches: Sequence[Batch], step: int, find_operation: bool, share: WorkShare | None = None
    ) -> tuple[list[int], str]:
        """Return the indices of the micro-batches with a non-finite gradient, and the first non-finite operation.

        The operation is searched for only with `find_operation`, by recomputing the gradient; otherwise it is "".
        """
        share = share or full_share(batches)
        if find_operation:
            index, operation = min(self.world.all_gather_object(self._first_anomaly(batches, share, step)))
            if operation:
                return [index], operation
        nonfinite = [index for index, loss in enumerate(self.losses) if not math.isfinite(loss)]
        return nonfinite or [*range(share.n_micro_batches)], NO_OPERATION if find_operation else ""

    def _first_anomaly(self, batches: Sequence[Batch], share: WorkShare, step: int) -> tuple[int, str]:
        self.adam.zero_grad()
        with npx.keyed(self.settings.seed, step), ignore_nonfinite_warnings():
            for index, batch in zip(share.indices, batches, strict=True):
                with self._use_dropout_keys(step, index, batch):
                    if operation := first_anomaly(partial(self._backward, batch, share.n_targets)):
                        return index, operation
        return share.n_micro_batches, ""

    def apply_gradient(self, lr: float, norm: float) -> None:
        """Update the weights with the computed gradient, whose L2 norm is `norm`."""
        self.adam.step(lr, clip_factor(norm, self.settings.clip_norm) / self.loss_scale.value)
        self.reducer.all_gather_weights()
        if self.average is not None:
            self.average.update(self.adam.steps)
        self.loss_scale.record_update()

    def describe_memory(self, batches: Sequence[Batch]) -> str:
        """Return a line that names the largest micro-batch and what uses the memory."""
        gpu_memory = npx.memory_use()
        largest = max(batches, key=lambda batch: batch.shape).describe()
        flat, adam = self.flat, self.adam
        arrays = flat.data, flat.low_precision_data, adam.m, adam.v
        gradients = flat.size * flat.data.itemsize  # bytes for all weights, even if sharded
        parameters = (sum(a.nbytes for a in arrays if a is not None) + gradients) / 2**20
        saved = "; ".join(map(str, saved_arrays()[:3])) or "nothing yet"
        gpu = ""
        if gpu_memory:
            gpu = f"{gpu_memory.used / GIB:.1f} of the GPU's {gpu_memory.total / GIB:.1f} GiB in arrays; "
        return (
            f"{gpu}weights, gradients and moments: {parameters:,.1f} MiB; largest micro-batch: {largest}; "
            f"largest arrays saved for backward: {saved}"
        )

    def _out_of_memory_message(self, step: int) -> str:
        """Return a line that says which configuration keys reduce the memory."""
        settings = self.settings
        checkpointing = ", or train.gradient_checkpointing = true (slower, same results)"
        return (
            f"step {step:,}: out of memory with train.batch_tokens = {settings.batch_tokens}; "
            f"try train.batch_tokens = {max(1, settings.batch_tokens // 2)} with train.gradient_accumulation_steps = "
            f"{2 * settings.gradient_accumulation_steps}{'' if settings.gradient_checkpointing else checkpointing}"
        )
