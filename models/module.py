"""Module and Parameter: a tree of layers whose parameters have names.

There is no registration: a module's parameters are the Parameters among its attributes, and those of the Modules among
them; both may also lie in lists, tuples and dicts. A Parameter reachable by two names is one parameter, under the first
of the names.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import npx
from autograd import Tensor, checkpoint
from autograd.engine import next_version


class Parameter(Tensor):
    """A Tensor that is learned.

    `data` is what is computed with. Where that is of low precision, `master` is the float32 array that is learned, and
    `data` its rounded copy; else it is None.
    """

    __slots__ = ("buffer", "master", "version")

    def __init__(self, data: Any) -> None:
        super().__init__(data, requires_grad=True)
        self.version = 0
        self.master: npx.Array | None = None
        self.buffer: Any = None  # refers to the FlatParameters it lies in: models/parameters.py

    def __getstate__(self) -> Any:
        """A copy has arrays of its own, which lie in no buffer; in another process moments are counted anew."""
        state: Any = super().__getstate__()  # Python 3.11's: (None, what the slots hold)
        return None, state[1] | {"buffer": None, "version": 0}

    @property
    def weights(self) -> npx.Array:
        """The array that is learned."""
        return self.data if self.master is None else self.master

    def assign(self, values: Any) -> None:
        """Copy `values` into the weights."""
        self.version = next_version()
        self.weights[...] = values
        if self.master is not None:
            self.data[...] = self.master.astype(self.dtype)


class Module:
    """Base of everything that has parameters. Subclasses define `forward`; calling a module calls it."""

    training = True
    hook: Callable[..., Any] | None = None  # gets the positional arguments of each call
    gradient_checkpointing = False  # keep nothing of a call but inputs and output: autograd/rematerialize.py

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__}: expected a `forward` method; got none; try defining one")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.hook:
            self.hook(*args)
        if self.gradient_checkpointing:
            return checkpoint(self.forward, *args, **kwargs)
        return self.forward(*args, **kwargs)

    def named_children(self) -> Iterator[tuple[str, "Module"]]:
        """(attribute name, module) of the modules directly in this one; "name.i" for the i-th of a list."""
        return ((name, part) for name, part in _parts(vars(self)) if isinstance(part, Module))

    def modules(self) -> Iterator["Module"]:
        """This module and every one below it."""
        yield self
        for _, child in self.named_children():
            yield from child.modules()

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """(dotted name, parameter), each parameter once."""
        seen: set[int] = set()
        for name, parameter in self._named_parameters(""):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter

    def _named_parameters(self, prefix: str) -> Iterator[tuple[str, Parameter]]:
        for name, part in _parts(vars(self)):
            if isinstance(part, Parameter):
                yield prefix + name, part
        for name, child in self.named_children():
            yield from child._named_parameters(f"{prefix}{name}.")

    def parameters(self) -> Iterator[Parameter]:
        """Each parameter once."""
        return (parameter for _, parameter in self.named_parameters())

    def n_parameters(self) -> int:
        """The number of learned numbers."""
        return sum(p.size for p in self.parameters())

    def train(self, mode: bool = True) -> "Module":
        """Training mode (dropout on) for this module and all below; returns the module."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> "Module":
        """Evaluation mode (dropout off); returns the module."""
        return self.train(False)

    def state_dict(self) -> dict[str, npx.Array]:
        """Copies of all weights as NumPy arrays, by name."""
        return {name: npx.to_host(p.weights).copy() for name, p in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, npx.Array]) -> None:
        """Copy arrays into the parameters of the same names.

        Raises ValueError, before anything is changed, naming what is missing, unexpected, no numbers or of another
        shape.
        """
        own = dict(self.named_parameters())
        problems = [f"missing {name}" for name in own if name not in state]
        problems += [f"unexpected {name}" for name in state if name not in own]
        problems += [
            f"{name} is {state[name].dtype}"
            for name, p in own.items()
            if name in state and not npx.host.can_cast(state[name].dtype, npx.float64, "same_kind")
        ]
        problems += [
            f"{name} has shape {tuple(state[name].shape)} instead of {p.shape}"
            for name, p in own.items()
            if name in state and tuple(state[name].shape) != p.shape
        ]
        if problems:
            more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
            raise ValueError(
                f"load_state_dict: expected the {len(own)} parameters of this {type(self).__name__}; "
                f"got: {'; '.join(problems[:3])}{more}; try the configuration that the state was saved with"
            )
        for name, p in own.items():
            p.assign(npx.from_host(npx.to_host(state[name])))


def _parts(within: Any) -> Iterator[tuple[str, Module | Parameter]]:
    """(name, part) of the Modules and Parameters in a dict, a list or a tuple, and of those in it; "name.i"."""
    for name, value in within.items() if isinstance(within, dict) else enumerate(within):
        if isinstance(value, (Module, Parameter)):
            yield str(name), value
        elif isinstance(value, (list, tuple, dict)):
            for inner, part in _parts(value):
                yield f"{name}.{inner}", part
