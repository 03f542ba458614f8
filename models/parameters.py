"""The parameters of a module in one flat buffer, for the optimizer and for data-parallel training.

By default, each gradient is a separate array, which a vjp creates and the next `zero_grad` deletes. It can therefore
use memory that activations have freed, and no array has to be filled with zeros. The alternative is one array for all
gradients, created by `FlatParameters.flatten_grad`. This array is needed with several ranks, which send parts of it;
with CUDA graphs, which add to fixed addresses; and with low-precision weights, whose gradients are float32.
"""

import weakref
from collections.abc import Iterator, Sequence
from itertools import accumulate as running_totals
from typing import Any

import npx
from autograd.engine import next_number
from models.module import Module

CHUNK_SIZE = 1 << 17  # small neighboring gradients are concatenated up to this number of elements


class FlatParameters:
    """All trainable parameters of a module, as views into one array `data`.

    Args:
        module: the module. Parameters with `requires_grad = False` are left out.
        compute_dtype: for mixed precision, a narrower dtype for computations. Default None: the parameters' dtype.

    Attributes:
        data: the weights, in the parameters' dtype; in mixed precision, each parameter's `master` is a view of it.
        grad: all gradients in one array, or None before the first `flatten_grad`.
        low_precision_data: in mixed precision, the weights rounded to `compute_dtype`; each parameter's `data` is a
            view of it. Otherwise None. `data` and `grad` stay in full precision, so that no small update is lost.
        spans: the slice of the flat arrays for each parameter, by name.
        size, n_local: the number of weights, and how many of them this process updates (`shard_to`).

    Raises ValueError if a trainable parameter is already in a FlatParameters (share that one), or if the trainable
    parameters have different dtypes.
    """

    def __init__(self, module: Module, compute_dtype: Any = None) -> None:
        if not isinstance(module, Module):
            raise TypeError(f"FlatParameters: expected a Module; got {type(module).__name__}; try the model")
        trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
        dtypes = {p.weights.dtype for p in trainable.values()}
        if len(dtypes) != 1:
            raise ValueError(
                f"FlatParameters: expected parameters of one dtype; got {sorted(map(str, dtypes)) or 'no parameters'}"
            )
        in_use = [name for name, p in trainable.items() if p.flat_ref is not None and p.flat_ref() is not None]
        if in_use:
            raise ValueError(
                f"FlatParameters: expected parameters that no other FlatParameters contains; got {in_use[0]}; "
                "try sharing the existing FlatParameters, as in Adam(flat), or deleting it and its Adam"
            )
        self.module = module
        self.parameters = list(trainable.values())
        self.size = self.n_local = size = sum(p.size for p in self.parameters)
        dtype = dtypes.pop()
        self.compute_dtype = dtype if compute_dtype is None else compute_dtype
        self.data = npx.empty(size, dtype)
        self.grad: npx.Array | None = None
        self.low_precision_data = None if self.compute_dtype == dtype else npx.empty(size, self.compute_dtype)
        self.spans: dict[str, slice] = {}
        flat_ref = weakref.ref(self)
        start = 0
        for name, p in trainable.items():
            span = slice(start, start + p.size)
            self.data[span] = p.weights.reshape(-1)
            data = self.data[span].reshape(p.shape)
            if self.low_precision_data is None:
                p.data = data
                p.master = None
            else:
                p.data = self.low_precision_data[span].reshape(p.shape)
                p.master = data
                p.assign(data)
            p.flat_ref = flat_ref
            self.spans[name] = span
            start = span.stop
        for p in module.parameters():  # parameters that are not trained need the compute dtype too
            if not p.requires_grad:
                weights = p.weights
                p.master = None if self.low_precision_data is None else weights
                p.data = weights if p.master is None else weights.astype(self.compute_dtype)
        self._data_views = [p.data for p in self.parameters]
        self._grad_views: list[npx.Array] = []
        if self.low_precision_data is not None:
            self.flatten_grad()
        # For each span that this rank updates: (slice of the full buffer, slice of `data`). Empty if it updates all.
        self._local_spans: list[tuple[slice, slice]] = []

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "FlatParameters and Adam cannot be copied or pickled without the module; "
            "try copying the module, then Adam(copy) and load_state_dict"
        )

    def shard_to(self, spans: Sequence[slice]) -> None:
        """Restrict the updates of this process to these spans of the buffer; other ranks update and send the rest.

        In mixed precision `data` then holds only these spans, and parameters have no `master`.
        """
        sizes = [span.stop - span.start for span in spans]
        self._local_spans = [(span, span) for span in spans]
        self.n_local = sum(sizes)
        if self.low_precision_data is not None:  # the forward pass needs only these weights, which are complete
            self.data = join_arrays([self.data[span] for span in spans])
            ends = list(running_totals(sizes))
            self._local_spans = [(span, slice(end - n, end)) for span, n, end in zip(spans, sizes, ends, strict=True)]
            for p in self.parameters:
                p.master = None

    def flatten_grad(self) -> npx.Array:
        """Make every gradient a view of one array, `grad`, and return this array. Missing gradients become zeros.

        The first call creates the array. A later call copies into it the gradients assigned since the previous call.
        """
        if self.grad is None:
            self.grad = npx.empty(self.size, self.data.dtype)
            spans = zip(self._data_views, self.spans.values(), strict=True)
            self._grad_views += [self.grad[span].reshape(data.shape) for data, span in spans]
        for p, view in zip(self.parameters, self._grad_views, strict=True):
            if p.grad is not view:
                view[...] = 0 if p.grad is None else p.grad
                p.grad = view
        return self.grad

    def gradient_chunks(self) -> Iterator[tuple[slice, npx.Array]]:
        """Yield (span of the flat arrays, gradient) for each chunk in order. Missing gradients are zeros."""
        if self.grad is not None:
            yield slice(0, self.size), self.flatten_grad()
            return
        start = 0
        parts: list[npx.Array] = []
        for p, span in zip(self.parameters, self.spans.values(), strict=True):
            if parts and span.stop - start > CHUNK_SIZE:
                yield slice(start, span.start), join_arrays(parts)
                start = span.start
                parts = []
            parts.append(npx.zeros(p.size, p.dtype) if p.grad is None else p.grad.reshape(-1))
        yield slice(start, self.size), join_arrays(parts)

    def update_chunks(self) -> Iterator[tuple[npx.Array, npx.Array, npx.Array | None]]:
        """Yield the parts that this process updates, as (weights, gradient, low-precision weights or None)."""
        if self._local_spans:
            chunks = ((span, data_span, self.flatten_grad()[span]) for span, data_span in self._local_spans)
        else:
            chunks = ((span, span, g) for span, g in self.gradient_chunks())
        for span, data_span, g in chunks:
            yield self.data[data_span], g, None if self.low_precision_data is None else self.low_precision_data[span]

    def round_weights(self) -> None:
        """Round the weights that this process updates, and store them in `low_precision_data`."""
        if self.low_precision_data is not None:
            for span, data_span in self._local_spans or [(slice(None), slice(None))]:
                self.low_precision_data[span] = self.data[data_span]

    def check_views(self) -> None:
        """Raise ValueError if the module's parameters are no longer the ones in the buffer."""
        current = [p for p in self.module.parameters() if p.requires_grad]
        same_number = len(current) == len(self.parameters)
        if not same_number or any(a is not b for a, b in zip(current, self.parameters, strict=True)):
            raise ValueError(
                f"FlatParameters: the parameters of {type(self.module).__name__} have changed since the buffer was "
                "created; create FlatParameters and Adam after the last change of the module"
            )
        for name, p, view in zip(self.spans, current, self._data_views, strict=True):
            if p.data is not view:
                raise ValueError(
                    f"FlatParameters: the data of {name} was set to an array outside the buffer; "
                    "use p.assign(values), which copies the values into the buffer"
                )

    def mark_updated(self) -> None:
        """Record that the weights have changed; backward then rejects graphs computed with the old weights."""
        changed_at = next_number()
        for p in self.parameters:
            p.changed_at = changed_at

    def zero_grad(self) -> None:
        """Set every gradient to zero after `flatten_grad`, and otherwise to None."""
        self.check_views()
        if self.grad is not None:
            self.flatten_grad()[...] = 0
            return
        for p in self.parameters:
            p.grad = None


def join_arrays(parts: list[npx.Array]) -> npx.Array:
    """Concatenate arrays; a single array is returned as is."""
    return parts[0] if len(parts) == 1 else npx.concatenate(parts)
