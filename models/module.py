"""Module and Parameter: a tree of layers whose parameters have names.

Parameters need no registration: they are found among the attributes of a module and, recursively, among the attributes
of its submodules. Parameters and submodules may be inside lists, tuples and dicts. A Parameter with several names
counts once, under the first of them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import npx
from autograd import Tensor, checkpoint, no_grad
from autograd.engine import next_number


class Parameter(Tensor):
    """A trainable Tensor.

    `data` holds the values that are used in computations. In mixed precision `master` is the float32 array that the
    optimizer updates, and `data` its rounded copy; otherwise `master` is None.
    """

    __slots__ = ("flat_ref", "master", "changed_at")

    def __init__(self, data: Any) -> None:
        super().__init__(data, requires_grad=True)
        self.changed_at = 0
        self.master: npx.Array | None = None
        self.flat_ref: Any = None  # weak reference to the FlatParameters that holds this parameter

    def __getstate__(self) -> Any:
        """Return the state for a copy or pickle: without the original's buffer, and with changed_at 0."""
        state: Any = super().__getstate__()  # Python 3.11 returns (None, values) for slots
        return None, state[1] | {"flat_ref": None, "changed_at": 0}

    @property
    def weights(self) -> npx.Array:
        """The array that the optimizer updates: `master` if present, otherwise `data`."""
        return self.data if self.master is None else self.master

    def assign(self, values: Any) -> None:
        """Copy `values` into the weights."""
        self.changed_at = next_number()
        self.weights[...] = values
        if self.master is not None:
            self.data[...] = self.master.astype(self.dtype)


class Module:
    """Base class of everything that has parameters.

    Subclasses create Parameters and Modules as attributes in `__init__` and define `forward`. Calling a module calls
    `forward` with the same arguments.

    Attributes:
        training: whether dropout is active; set it with `train()` and `eval()`.
        hook: called with the positional arguments of each call, for inspection. Default None.
        gradient_checkpointing: whether to save only the inputs and outputs of calls and recompute the rest in backward
            (autograd/checkpointing.py). Default False.
    """

    training = True
    hook: Callable[..., Any] | None = None
    gradient_checkpointing = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the output; subclasses must define this."""
        raise NotImplementedError(f"{type(self).__name__} must define forward()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.hook:
            self.hook(*args)
        if self.gradient_checkpointing:
            return checkpoint(self.forward, *args, **kwargs)
        return self.forward(*args, **kwargs)

    def named_children(self) -> Iterator[tuple[str, "Module"]]:
        """Yield (name, module) for each direct child, named like its attribute or, as part i of a list, "name.i"."""
        return ((name, part) for name, part in _parts(vars(self)) if isinstance(part, Module))

    def modules(self) -> Iterator["Module"]:
        """Yield this module and all its descendants."""
        yield self
        for _, child in self.named_children():
            yield from child.modules()

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield (dotted name, parameter), each parameter once."""
        seen: set[int] = set()
        for name, parameter in self._named_parameters(""):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter

    def _named_parameters(self, prefix: str) -> Iterator[tuple[str, Parameter]]:
        children = []
        for name, part in _parts(vars(self)):
            if isinstance(part, Parameter):
                yield prefix + name, part
            else:
                children.append((name, part))
        for name, child in children:
            yield from child._named_parameters(f"{prefix}{name}.")

    def parameters(self) -> Iterator[Parameter]:
        """Yield each parameter once."""
        return (parameter for _, parameter in self.named_parameters())

    def n_parameters(self) -> int:
        """Return the total number of elements of all parameters."""
        return sum(p.size for p in self.parameters())

    def train(self, mode: bool = True) -> "Module":
        """Set training mode (dropout active) for this module and its descendants. Return the module."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> "Module":
        """Set evaluation mode (no dropout) for this module and its descendants. Return the module."""
        return self.train(False)

    def state_dict(self) -> dict[str, npx.Array]:
        """Return copies of all weights as NumPy arrays, by parameter name."""
        return {name: npx.to_host(p.weights).copy() for name, p in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, npx.Array]) -> None:
        """Copy arrays into the parameters with the same names.

        Raises ValueError for missing or unexpected names, wrong shapes and non-numeric arrays; in these cases, nothing
        is changed.
        """
        parameters = dict(self.named_parameters())
        common = {name: p for name, p in parameters.items() if name in state}
        problems = [f"missing {name}" for name in parameters if name not in state]
        problems += [f"unexpected {name}" for name in state if name not in parameters]
        problems += [
            f"{name} is {state[name].dtype}"
            for name in common
            if not npx.host.can_cast(state[name].dtype, npx.float64, "same_kind")
        ]
        problems += [
            f"{name} has shape {tuple(state[name].shape)} instead of {p.shape}"
            for name, p in common.items()
            if tuple(state[name].shape) != p.shape
        ]
        if problems:
            more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
            raise ValueError(
                f"load_state_dict: expected the {len(parameters)} parameters of this {type(self).__name__}; "
                f"got: {'; '.join(problems[:3])}{more}; try the configuration with which the state was saved"
            )
        for name, p in parameters.items():
            p.assign(npx.from_host(npx.to_host(state[name])))


def _parts(container: Any) -> Iterator[tuple[str, Module | Parameter]]:
    """Yield (name, part) for the Modules and Parameters in a container; those in nested containers are named "name.i".

    A container is a dict, list or tuple.
    """
    for name, value in container.items() if isinstance(container, dict) else enumerate(container):
        if isinstance(value, (Module, Parameter)):
            yield str(name), value
        elif isinstance(value, (list, tuple, dict)):
            for inner, part in _parts(value):
                yield f"{name}.{inner}", part


@contextmanager
def evaluation_mode(model: Any) -> Iterator[None]:
    """Run `model` without dropout and without a graph within the block, then restore the mode of each module.

    `model` is a Module, or any object with `training` and `train` (models/search/protocol.py).
    """
    training = model.training
    modes = [(module, module.training) for module in getattr(model, "modules", tuple)()]
    model.train(False)
    try:
        with no_grad():
            yield
    finally:
        model.train(training)
        for module, mode in modes:
            module.training = mode
