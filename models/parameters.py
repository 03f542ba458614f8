"""The parameters of a module in one flat buffer, for all that goes over each of them; their gradients in pieces or one.

A gradient in an array of its own is there from the vjp that formed it to the next `zero_grad`, in memory that was given
back by activations: a step needs no room for all of both, writes no zeros, and adds nothing to them. One array for all
gradients, which stays where it is, is made for those who ask for it: ranks, which send parts of it, CUDA graphs, which
add where they added before, weights of low precision, whose gradients are float32.
"""

import weakref
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import npx
from autograd.engine import next_version
from models.module import Module

JOINED = 1 << 17  # numbers: neighbouring gradients are gone over as one array up to this size


class FlatParameters:
    """Every parameter of a module in one array `data`; every gradient in another, `grad`, once that was asked for.

    The parameters' own `data` become views; those that want no gradient (`p.requires_grad = False`) stay outside, and
    are not learned. `spans`: name -> slice of the flat arrays. Built once and handed on: ValueError where parameters
    lie in another already, and (`check`) where the module is not any more what it was then.

    Mixed precision: with `numbers`, a narrower dtype to compute with, a third array `low` holds the weights rounded to
    it, and the parameters' `data` are views of that one; `data`, their `master`, and `grad`, which is there from the
    beginning, keep the dtype they have. So a small update is not lost to rounding, and gradients add up in full
    precision. Else `low` is None.

    `shard_to`: what is learned here may be parts of it. Then `data` beside a `low` is those parts alone.
    """

    def __init__(self, module: Module, numbers: Any = None) -> None:
        if not isinstance(module, Module):
            raise TypeError(f"FlatParameters: expected a Module; got {type(module).__name__}; try one that has them")
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        dtypes = {p.weights.dtype for p in named.values()}
        if len(dtypes) != 1:
            found = sorted(map(str, dtypes)) or "none"
            raise ValueError(f"FlatParameters: expected parameters of one dtype; got {found}")
        taken = [name for name, p in named.items() if p.buffer is not None and p.buffer() is not None]
        if taken:
            raise ValueError(
                f"FlatParameters: expected parameters in no buffer yet; got {taken[0]} and {len(taken) - 1} more; "
                "try handing on the FlatParameters built first, as in Adam(flat), or deleting it and its Adam"
            )
        self.module, self.parameters = module, list(named.values())
        size, dtype = sum(p.size for p in self.parameters), dtypes.pop()
        self.size = self.learned = size  # numbers, and how many of them are learned here
        self.numbers = dtype if numbers is None else numbers
        self.data = npx.empty(size, dtype)
        self._grad: npx.Array | None = None
        self.low = None if self.numbers == dtype else npx.empty(size, self.numbers)
        self.spans: dict[str, slice] = {}
        start, me = 0, weakref.ref(self)
        for name, p in named.items():
            span = slice(start, start + p.size)
            self.data[span] = p.weights.reshape(-1)
            data = self.data[span].reshape(p.shape)
            if self.low is None:
                p.data, p.master = data, None
            else:
                p.data, p.master = self.low[span].reshape(p.shape), data
                p.assign(data)
            p.buffer = me
            self.spans[name] = span
            start = span.stop
        self._views = [p.data for p in self.parameters], list[npx.Array]()  # of the weights, and of the gradients
        self._grad = None if self.low is None else self.grad
        self.parts: list[tuple[slice, slice]] = []  # that are learned here: of the buffer, of `data`; none: all

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "FlatParameters: expected to stay with its parameters; got a copy or a pickle of it (an Adam has one); "
            "try copying the module, and Adam(copy) with load_state_dict"
        )

    def shard_to(self, parts: Sequence[slice]) -> None:
        """From now on only these parts of the buffer are learned here; who learns the others gives them."""
        sizes = [part.stop - part.start for part in parts]
        self.parts, self.learned = [(part, part) for part in parts], sum(sizes)
        if self.low is not None:  # what is computed with is all there, and the parameters need no more
            self.data = joined([self.data[part] for part in parts])
            ends = list(accumulate(sizes))
            self.parts = [(part, slice(end - n, end)) for part, n, end in zip(parts, sizes, ends, strict=True)]
            for p in self.parameters:
                p.master = None

    @property
    def grad(self) -> npx.Array:
        """All gradients in one array, in which they lie from the first time on that it is asked for."""
        weights, views = self._views
        if self._grad is None:
            whole = self._grad = npx.empty(self.size, self.data.dtype)
            views += [whole[span].reshape(p.shape) for p, span in zip(weights, self.spans.values(), strict=True)]
        for p, view in zip(self.parameters, views, strict=True):
            if p.grad is not view:  # it was not there yet, or another was set by hand
                view[...] = 0 if p.grad is None else p.grad
                p.grad = view
        return self._grad

    def gradient(self) -> Iterator[tuple[slice, npx.Array]]:
        """The gradient from the first parameter to the last, in pieces: where each lies in `data`, and its numbers."""
        if self._grad is not None:
            yield slice(0, self.size), self.grad
            return
        start, parts = 0, list[npx.Array]()
        for p, span in zip(self.parameters, self.spans.values(), strict=True):
            if parts and span.stop - start > JOINED:
                yield slice(start, span.start), joined(parts)
                start, parts = span.start, []
            parts.append(npx.zeros(p.size, p.dtype) if p.grad is None else p.grad.reshape(-1))
        yield slice(start, self.size), joined(parts)

    def pieces(self) -> Iterator[tuple[npx.Array, npx.Array, npx.Array | None]]:
        """What is learned here, in pieces: weights, their gradient, and their rounded copy where there is one."""
        parts = ((part, own, self.grad[part]) for part, own in self.parts)
        for part, own, g in parts if self.parts else ((part, part, g) for part, g in self.gradient()):
            yield self.data[own], g, None if self.low is None else self.low[part]

    def check(self) -> None:
        """ValueError where the module learns other parameters than those in the buffer, or they lie elsewhere now."""
        now = [p for p in self.module.parameters() if p.requires_grad]
        if len(now) != len(self.parameters) or any(a is not b for a, b in zip(now, self.parameters, strict=True)):
            raise ValueError(
                f"FlatParameters: expected the {len(self.parameters)} parameters that the {type(self.module).__name__} "
                f"had when its buffer was made; got {len(now)}, some of them others; try building it (and Adam) after "
                "the last change of the module"
            )
        if any(p.data is not view for p, view in zip(now, self._views[0], strict=True)):
            raise ValueError(
                "FlatParameters: expected parameters whose data lie in the buffer; got one whose data were set to "
                "another array; try p.assign(values)"
            )

    def mark_updated(self) -> None:
        """Note that the weights have changed, so that backward rejects graphs that were computed with the old ones."""
        version = next_version()
        for p in self.parameters:
            p.version = version

    def zero_grad(self) -> None:
        """Set every gradient to zero, which is to None where it lies in an array of its own."""
        self.check()
        if self._grad is not None:
            self.grad[...] = 0
            return
        for p in self.parameters:
            p.grad = None


def joined(parts: list[npx.Array]) -> npx.Array:
    """Arrays one after the other in one."""
    return parts[0] if len(parts) == 1 else npx.concatenate(parts)
