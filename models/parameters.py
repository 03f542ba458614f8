"""The parameters of a module in one flat buffer, for the optimizer and for data-parallel training.

By default each gradient is a separate array, which exists from the vjp that computes it until the next `zero_grad`. It
can reuse memory that activations have freed, nothing is zeroed, and the first gradient is not added to zeros. The
alternative is one array for all gradients, `FlatParameters.grad`, created when it is first read. It is needed with
several ranks, which send parts of it; with CUDA graphs, which add to fixed addresses; and with low-precision weights,
whose gradients are float32.
"""

import weakref
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import npx
from autograd.engine import next_version
from models.module import Module

CHUNK_SIZE = 1 << 17  # number of elements up to which neighboring gradients are concatenated


class FlatParameters:
    """All trainable parameters of a module, as views into one array `data`.

    Args:
        module: the module. Parameters with `requires_grad = False` are left out. Raises ValueError if the others are
            already in a buffer (build it once and pass it on), or do not all have the same dtype.
        compute_dtype: for mixed precision, a narrower dtype for computations. Default None: the parameters' dtype.

    Attributes:
        data: the weights (`master` of each parameter in mixed precision), in the parameters' dtype.
        grad: all gradients in one array; see the module docstring.
        low_precision: in mixed precision the weights rounded to `compute_dtype`, of which each parameter's `data` is a
            view; otherwise None. `data` and `grad` stay in full precision, so rounding does not lose small updates.
        spans: name -> slice of the flat arrays.
        size, n_local: the number of weights, and how many of them this process updates (`shard_to`).
    """

    def __init__(self, module: Module, compute_dtype: Any = None) -> None:
        if not isinstance(module, Module):
            raise TypeError(f"FlatParameters: expected a Module; got {type(module).__name__}; try the model")
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        dtypes = {p.weights.dtype for p in named.values()}
        if len(dtypes) != 1:
            raise ValueError(
                f"FlatParameters: expected parameters of one dtype; got {sorted(map(str, dtypes)) or 'no parameters'}"
            )
        in_use = [name for name, p in named.items() if p.buffer is not None and p.buffer() is not None]
        if in_use:
            raise ValueError(
                f"FlatParameters: expected parameters in no other buffer; got {in_use[0]}, which is in another one; "
                "try the existing FlatParameters, as in Adam(flat), or deleting that object and its Adam"
            )
        self.module, self.parameters = module, list(named.values())
        size, dtype = sum(p.size for p in self.parameters), dtypes.pop()
        self.size = self.n_local = size
        self.compute_dtype = dtype if compute_dtype is None else compute_dtype
        self.data = npx.empty(size, dtype)
        self._grad: npx.Array | None = None
        self.low_precision = None if self.compute_dtype == dtype else npx.empty(size, self.compute_dtype)
        self.spans: dict[str, slice] = {}
        start, reference = 0, weakref.ref(self)
        for name, p in named.items():
            span = slice(start, start + p.size)
            self.data[span] = p.weights.reshape(-1)
            data = self.data[span].reshape(p.shape)
            if self.low_precision is None:
                p.data, p.master = data, None
            else:
                p.data, p.master = self.low_precision[span].reshape(p.shape), data
                p.assign(data)
            p.buffer = reference
            self.spans[name] = span
            start = span.stop
        if self.low_precision is not None:  # untrained parameters need the compute dtype too
            for p in module.parameters():
                if not p.requires_grad:
                    p.master = p.weights
                    p.data = p.master.astype(self.compute_dtype)
        self._data_views, self._grad_views = [p.data for p in self.parameters], list[npx.Array]()
        self._grad = None if self.low_precision is None else self.grad
        self._local_spans: list[tuple[slice, slice]] = []  # this rank's spans (in the buffer, in `data`); empty: all

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "FlatParameters: cannot be copied or pickled without its module, and neither can an Adam, which contains "
            "a FlatParameters; try copying the module, then Adam(copy) and load_state_dict"
        )

    def shard_to(self, spans: Sequence[slice]) -> None:
        """Restrict the updates of this process to these spans of the buffer; other ranks update and send the rest.

        In mixed precision `data` then holds only these spans, and parameters have no `master`.
        """
        sizes = [span.stop - span.start for span in spans]
        self._local_spans = [(span, span) for span in spans]
        self.n_local = sum(sizes)
        if self.low_precision is not None:  # the forward pass needs only the low-precision weights, which are complete
            self.data = concatenate([self.data[span] for span in spans])
            ends = list(accumulate(sizes))
            self._local_spans = [(span, slice(end - n, end)) for span, n, end in zip(spans, sizes, ends, strict=True)]
            for p in self.parameters:
                p.master = None

    @property
    def grad(self) -> npx.Array:
        """All gradients in one array, created at the first access; from then on every gradient is a view of it."""
        if self._grad is None:
            grad = self._grad = npx.empty(self.size, self.data.dtype)
            spans = zip(self._data_views, self.spans.values(), strict=True)
            self._grad_views += [grad[span].reshape(data.shape) for data, span in spans]
        for p, view in zip(self.parameters, self._grad_views, strict=True):
            if p.grad is not view:  # first access, or p.grad was assigned
                view[...] = 0 if p.grad is None else p.grad
                p.grad = view
        return self._grad

    def gradient_chunks(self) -> Iterator[tuple[slice, npx.Array]]:
        """Yield the gradient in order, as (span of the flat arrays, values); missing gradients are zeros."""
        if self._grad is not None:
            yield slice(0, self.size), self.grad
            return
        start, parts = 0, list[npx.Array]()
        for p, span in zip(self.parameters, self.spans.values(), strict=True):
            if parts and span.stop - start > CHUNK_SIZE:
                yield slice(start, span.start), concatenate(parts)
                start, parts = span.start, []
            parts.append(npx.zeros(p.size, p.dtype) if p.grad is None else p.grad.reshape(-1))
        yield slice(start, self.size), concatenate(parts)

    def update_chunks(self) -> Iterator[tuple[npx.Array, npx.Array, npx.Array | None]]:
        """Yield the parts that this process updates, as (weights, gradient, low-precision weights or None)."""
        local = ((span, data_span, self.grad[span]) for span, data_span in self._local_spans)
        for span, data_span, g in local if self._local_spans else ((s, s, g) for s, g in self.gradient_chunks()):
            yield self.data[data_span], g, None if self.low_precision is None else self.low_precision[span]

    def round_weights(self) -> None:
        """Copy the weights that this process updates, rounded, into the low-precision weights."""
        if self.low_precision is not None:
            for span, data_span in self._local_spans or [(slice(None), slice(None))]:
                self.low_precision[span] = self.data[data_span]

    def check(self) -> None:
        """Raise ValueError if the module's parameters are no longer the ones in the buffer."""
        current = [p for p in self.module.parameters() if p.requires_grad]
        same_number = len(current) == len(self.parameters)
        if not same_number or any(a is not b for a, b in zip(current, self.parameters, strict=True)):
            raise ValueError(
                f"FlatParameters: expected the {len(self.parameters)} parameters that the {type(self.module).__name__} "
                f"had when its buffer was created; got {len(current)}, some of them different; try creating "
                "FlatParameters and Adam after the last change of the module"
            )
        if any(p.data is not view for p, view in zip(current, self._data_views, strict=True)):
            raise ValueError(
                "FlatParameters: expected parameters whose data is in the buffer; got a parameter whose data was set "
                "to another array; try p.assign(values)"
            )

    def mark_updated(self) -> None:
        """Record that the weights have changed; backward then rejects graphs that were computed with the old ones."""
        version = next_version()
        for p in self.parameters:
            p.version = version

    def zero_grad(self) -> None:
        """Reset every gradient: to zero in the flat array, otherwise to None."""
        self.check()
        if self._grad is not None:
            self.grad[...] = 0
            return
        for p in self.parameters:
            p.grad = None


def concatenate(parts: list[npx.Array]) -> npx.Array:
    """Concatenate arrays; a single array is returned as is."""
    return parts[0] if len(parts) == 1 else npx.concatenate(parts)
