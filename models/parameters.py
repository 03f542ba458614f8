"""The parameters of a module in one flat buffer, their gradients in another, for all that goes over each of them."""

import weakref
from typing import Any

import npx
from models.module import Module


class FlatParameters:
    """Every parameter of a module in one array `data`, every gradient in another, `grad`.

    The parameters' own `data` and `grad` become views, so that Adam, clipping, zeroing and averaging over machines
    are each one pass over one array. `spans`: name -> slice of the flat arrays. Built once and handed on: ValueError
    where parameters lie in another already, and (`check`) where the module is not any more what it was then.

    Mixed precision: with `numbers`, a narrower dtype to compute with, a third array `low` holds the weights rounded to
    it, and the parameters' `data` are views of that one; `data`, their `master`, and `grad` keep the dtype they have.
    So a small update is not lost to rounding, and gradients add up in full precision. Else `low` is None.
    """

    def __init__(self, module: Module, numbers: Any = None) -> None:
        named = dict(module.named_parameters())
        dtypes = {p.weights.dtype for p in named.values()}
        if len(dtypes) != 1:
            found = sorted(map(str, dtypes)) or "none"
            raise ValueError(f"FlatParameters: expected parameters of one dtype; got {found}")
        taken = [name for name, p in named.items() if p.buffer is not None and p.buffer() is not None]
        if taken:
            raise ValueError(
                f"FlatParameters: expected parameters in no buffer yet; got {taken[0]} and {len(taken) - 1} more; "
                "try handing on the FlatParameters built first, as in Adam(flat)"
            )
        self.module, self.parameters = module, list(named.values())
        size, dtype = sum(p.size for p in self.parameters), dtypes.pop()
        self.numbers = dtype if numbers is None else numbers
        self.data, self.grad = npx.empty(size, dtype), npx.zeros(size, dtype)
        self.low = None if self.numbers == dtype else npx.empty(size, self.numbers)
        self.spans: dict[str, slice] = {}
        start, me = 0, weakref.ref(self)
        for name, p in named.items():
            span = slice(start, start + p.size)
            self.data[span] = p.weights.reshape(-1)
            if p.grad is not None:
                self.grad[span] = p.grad.reshape(-1)
            data, p.grad = self.data[span].reshape(p.shape), self.grad[span].reshape(p.shape)
            if self.low is None:
                p.data, p.master = data, None
            else:
                p.data, p.master = self.low[span].reshape(p.shape), data
                p.assign(data)
            p.buffer = me
            self.spans[name] = span
            start = span.stop

    def check(self) -> None:
        """ValueError where the module has other parameters than those in the buffer."""
        now = list(self.module.parameters())
        if len(now) != len(self.parameters) or any(a is not b for a, b in zip(now, self.parameters, strict=True)):
            raise ValueError(
                f"FlatParameters: expected the {len(self.parameters)} parameters that the {type(self.module).__name__} "
                f"had when its buffer was made; got {len(now)}, some of them others; try building it (and Adam) after "
                "the last change of the module"
            )

    def zero_grad(self) -> None:
        """Set every gradient to zero."""
        self.check()
        self.grad[...] = 0
