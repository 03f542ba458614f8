"""`from_torch`: a PyTorch function, `autograd.Function` or module as an operation or a layer."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import npx
from autograd.engine import Tensor
from autograd.testing.adapters.base import (
    Backward,
    ForeignOperation,
    Unflatten,
    foreign_errors_converted,
    import_framework,
)
from autograd.testing.problem import is_array, is_float
from npx import Array

SEED = 0  # seed of PyTorch's random numbers, set before each call that uses them


def from_torch(function: Any, device: str | None = None) -> "TorchOperation":
    """Return an operation for `check_operation` and `gradcheck`; for a module, return a layer for `check_layer`.

    Args:
        function: a function of torch tensors, a subclass of `torch.autograd.Function` or its `apply`, or an instance of
            `torch.nn.Module`; the check runs on a copy of it.
        device: where the function runs, such as "cuda". Default: the device of the module's parameters, else the CPU.

    The backward pass receives gradients in every memory layout that PyTorch produces: contiguous, transposed, with
    gaps, and expanded. An output whose gradient is 0 counts as unused, unless the gradients of all outputs are 0.
    Random numbers are drawn from a fixed seed.
    """
    torch = import_framework("torch", "from_torch")
    if isinstance(function, type) and issubclass(function, torch.autograd.Function):
        function = function.apply  # type: ignore[attr-defined]
    if isinstance(function, torch.nn.Module):
        return TorchLayer(torch, function, device)
    if not callable(function) or isinstance(function, type):
        got = f"the class {function.__name__}" if isinstance(function, type) else type(function).__name__
        advice = f"an instance, {function.__name__}(...)" if isinstance(function, type) else "a function of tensors"
        raise TypeError(f"from_torch: expected a function, an autograd.Function or a module; got {got}; try {advice}")
    return TorchOperation(torch, function, device or "cpu")


class TorchOperation(ForeignOperation):
    """See `from_torch`."""

    adapter = "from_torch"
    materializes_zeros = False  # PyTorch creates the zeros, unless a function disables this

    def __init__(self, torch: Any, function: Callable[..., Any], device: str) -> None:
        super().__init__(function)
        self.torch, self.device = torch, device
        self.is_random = False
        # Whether each output has a gradient when every floating-point input requires one.
        self.has_gradient: list[bool] | None = None

    def evaluate(
        self, values: list[Any], requires_grad: list[bool], unflatten: Unflatten
    ) -> tuple[list[Array], Backward | None]:
        def function(tensors: list[Any]) -> Any:
            arguments, options = unflatten(tensors)
            return self.functions[0](*arguments, **options)

        return self.run(function, values, requires_grad)

    def run(
        self, function: Callable[[list[Any]], Any], values: list[Any], requires_grad: list[bool]
    ) -> tuple[list[Array], Backward | None]:
        """Call the function on a list of tensors made from the arrays."""
        torch = self.torch
        leaves = [self.tensor(x) if is_array(x) else x for x in values]
        # A call without gradients records a graph too: without one, PyTorch may compute in another order.
        differentiated = requires_grad if any(requires_grad) else [is_float(x) for x in values]
        with torch.enable_grad():
            for leaf, is_needed in zip(leaves, differentiated, strict=True):
                if is_needed:
                    leaf.requires_grad_(True)
            arguments = [self.non_leaf(x) if w else x for x, w in zip(leaves, differentiated, strict=True)]
            origins = [x.grad_fn if w else None for x, w in zip(arguments, differentiated, strict=True)]
            with foreign_errors_converted(), self.one_thread():
                result = self.call_seeded(function, arguments)
        outputs = tensors_in(result, torch)
        if not outputs:
            self.reject(f"expected a tensor or a tuple of tensors; got {type(result).__name__}", "returning a tensor")
        if any(requires_grad):
            self.reject_silent_writes(values, arguments, origins, requires_grad)
        if self.has_gradient is None:
            others = [f.variable for f in graph_nodes([y.grad_fn for y in outputs]) if hasattr(f, "variable")]
            for t in others:
                if all(t is not leaf for leaf in leaves):
                    text = f"not checked: the gradient of a tensor of shape {tuple(t.shape)} that is neither an input"
                    self.note(f"{text} nor a parameter (a module does not find parameters in a plain list)")
        if self.has_gradient is None or all(differentiated[i] for i, x in enumerate(values) if is_float(x)):
            self.has_gradient = [y.is_floating_point() and y.requires_grad for y in outputs]
            if not any(self.has_gradient) and any(y.is_floating_point() for y in outputs):
                self.note("the output has no grad_fn: it is detached from every input")
                self.has_gradient = [y.is_floating_point() for y in outputs]
            self.require_gradient([str(y.dtype).removeprefix("torch.") for y in outputs], self.has_gradient)
        differentiable = [y for y, keep in zip(outputs, self.has_gradient, strict=True) if keep]
        inputs = [leaf for leaf, is_needed in zip(leaves, requires_grad, strict=True) if is_needed]

        def run_backward(gradients: list[Array | None]) -> list[Array | None]:
            used = [(y, g) for y, g in zip(differentiable, gradients, strict=True) if g is not None and y.requires_grad]
            if not used:
                return [None] * len(requires_grad)
            given = [self.tensor(g) for _, g in used]
            before = [g.clone() for g in given]
            with foreign_errors_converted(), self.one_thread():
                results = iter(torch.autograd.grad([y for y, _ in used], inputs, given, allow_unused=True))
            for (_, array), g, old in zip(used, given, before, strict=True):
                if not tensors_equal(g, old):
                    array[...] = self.array(g)  # raises an error, because the checker's array is read-only
            return [self.gradient(next(results)) if is_needed else None for is_needed in requires_grad]

        run_backward.graph = [y.grad_fn for y in differentiable]  # type: ignore[attr-defined]
        return [self.array(y) for y in differentiable], run_backward if any(requires_grad) else None

    def cost(self, backward: Backward) -> tuple[int, int]:
        """Return the number of operations in PyTorch's graph, and the number of elements of the tensors they save."""
        graph = graph_nodes(getattr(backward, "graph", ()))
        total = 0
        for function in graph:
            saved = [getattr(function, name) for name in dir(function) if name.startswith("_saved_")]
            saved += getattr(function, "saved_tensors", ())
            total += sum(t.numel() for t in saved if isinstance(t, self.torch.Tensor))
        return len(graph), total

    @contextmanager
    def one_thread(self) -> Iterator[None]:
        """Compute on one thread: the arrays are small, so several threads would mostly wait for each other."""
        number = self.torch.get_num_threads()
        self.torch.set_num_threads(1)
        try:
            yield
        finally:
            self.torch.set_num_threads(number)

    def call_seeded(self, function: Callable[[list[Any]], Any], arguments: list[Any]) -> Any:
        """Call the function, with a fixed seed if it draws random numbers."""
        random = self.torch.random
        state = random.get_rng_state()
        try:
            if self.is_random:
                self.torch.default_generator.manual_seed(SEED)  # faster than torch.manual_seed
                if self.device != "cpu":
                    self.torch.cuda.manual_seed_all(SEED)
                return function(arguments)
            result = function(arguments)
            if self.torch.equal(state, random.get_rng_state()):
                return result
        finally:
            random.set_rng_state(state)
        self.is_random = True
        self.note(f"random numbers: torch.manual_seed({SEED}) before each call")
        return self.call_seeded(function, arguments)

    def non_leaf(self, leaf: Any) -> Any:
        """Return a copy of a leaf that the function may modify in place, with the same memory layout."""
        if leaf.is_contiguous() or any(n > 1 and s == 0 for n, s in zip(leaf.shape, leaf.stride(), strict=True)):
            return leaf.clone()
        return self.torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device).copy_(leaf)

    def reject_silent_writes(
        self, values: list[Any], arguments: list[Any], origins: list[Any], requires_grad: list[bool]
    ) -> None:
        """Add a note for changes of arguments that autograd tracks; copy other changes to the checker's arrays.

        These arrays are read-only, so the copy makes the checker report the change. Autograd tracks in-place
        operations and changes declared with `ctx.mark_dirty`: it replaces the `grad_fn` of the changed argument.
        """
        for i, (x, argument, origin) in enumerate(zip(values, arguments, origins, strict=True)):
            if not is_array(x) or arrays_equal(self.array(argument), x):
                continue
            if requires_grad[i] and argument.grad_fn is not origin:
                self.note(f"input {i} is modified in place, which autograd tracks")
            elif requires_grad[i] or not is_float(x):
                x[...] = self.array(argument)

    def tensor(self, x: Array) -> Any:
        """Return a new tensor with the values and, where PyTorch supports it, the memory layout of an array."""
        torch = self.torch
        host = npx.to_host(x)
        if host.flags.c_contiguous and host.dtype.kind in "fib" and host.itemsize <= 8 and self.device == "cpu":
            return torch.from_numpy(host.copy())  # the general case below takes several times as long
        dtype = getattr(torch, host.dtype.name, None)
        if self.is_random and 0 not in host.strides:
            host = npx.host.ascontiguousarray(host)  # the layout changes the order of random numbers
        if dtype is None:
            self.reject(f"expected a dtype that PyTorch supports; got {host.dtype}", ".astype('float32')")
        is_bfloat16 = host.dtype.name == "bfloat16"
        repeated = [n > 1 and stride == 0 for n, stride in zip(host.shape, host.strides, strict=True)]
        base = host[tuple(slice(0, 1) if r else slice(None) for r in repeated)]
        plain = npx.host.array(base, dtype="float32" if is_bfloat16 else None, order="C")
        t = torch.from_numpy(plain).to(dtype)
        if not (base.flags.c_contiguous or base.size < 2):
            # PyTorch has no negative strides; gaps replace them.
            factor = 2 if any(stride < 0 for stride in base.strides) else 1
            strides = [factor * abs(stride) // host.itemsize for stride in base.strides]
            span = 1 + sum((n - 1) * stride for n, stride in zip(base.shape, strides, strict=True))
            t = torch.zeros(span, dtype=dtype).as_strided(base.shape, strides).copy_(t)
        if self.device != "cpu":
            t = torch.empty_strided(t.shape, t.stride(), dtype=dtype, device=self.device).copy_(t)
        return t.expand(host.shape) if any(repeated) else t

    def array(self, t: Any) -> Array:
        """Return a copy of a tensor as an array."""
        t = t.detach().cpu()
        if t.dtype == self.torch.bfloat16:
            return t.float().numpy().astype("bfloat16")
        return npx.asarray(npx.host.array(t.numpy(force=True)))

    def gradient(self, t: Any) -> Array | None:
        """Return a gradient as an array."""
        if t is None:
            return None
        return self.array(t.to_dense() if t.layout != self.torch.strided else t)


class TorchLayer(TorchOperation):
    """A copy of a module for `check_layer`, with its parameters as Tensors and with training and evaluation modes.

    Each call starts from the module's buffers; a call's updates to them are discarded. Parameters that do not require a
    gradient are constants.
    """

    def __init__(self, torch: Any, module: Any, device: str | None) -> None:
        first = next(module.parameters(), None)
        super().__init__(torch, module, device or (str(first.device) if first is not None else "cpu"))
        self.__name__ = type(module).__name__
        self.module = copy.deepcopy(module).to(self.device)
        trainable = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        self.parameters = {n: Tensor(self.array(p), requires_grad=True) for n, p in trainable.items()}
        constants = {n: p for n, p in self.module.named_parameters() if not p.requires_grad}
        self.constants = {n: t.detach().clone() for n, t in (*constants.items(), *self.module.named_buffers())}
        names = {id(t): n for n, t in (*self.module.named_parameters(), *self.module.named_buffers())}
        stores = [store for m in self.module.modules() for store in (m._parameters, m._buffers)]
        # the places that hold parameters and buffers; one tensor may be in several places
        self.slots = [(store, key, names[id(t)]) for store in stores for key, t in store.items() if t is not None]
        self.functions = (type(module).forward,)

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """Return the name and the Tensor of each parameter."""
        return [*self.parameters.items()]

    def modules(self) -> list[Any]:
        """Return no module: each call starts from the buffers of the original one."""
        return []

    def train(self) -> None:
        self.synchronize().train()

    def eval(self) -> None:
        self.synchronize().eval()

    def synchronize(self) -> Any:
        """Copy the parameters to the module, which may compute values from them when its mode changes."""
        with self.torch.no_grad():
            for name, parameter in self.module.named_parameters():
                if name in self.parameters:
                    parameter.data = self.tensor(self.parameters[name].data)
        return self.module

    def __call__(self, *args: Any, **options: Any) -> Tensor:
        """Call the operation with inputs and parameters."""
        return super().__call__(args, options, [*self.parameters.values()])

    def evaluate(
        self, values: list[Any], requires_grad: list[bool], unflatten: Unflatten
    ) -> tuple[list[Array], Backward | None]:
        dtype = next((getattr(self.torch, x.dtype.name) for x in values if is_float(x)), None)

        def cast(t: Any) -> Any:
            return t.clone().to(dtype) if dtype and t.is_floating_point() else t.clone()

        def function(tensors: list[Any]) -> Any:
            (arguments, options, parameters), _ = unflatten(tensors)
            state = {name: cast(t) for name, t in self.constants.items()}
            state |= dict(zip(self.parameters, parameters, strict=True))
            with self.tensors_replaced(state):
                return self.module(*arguments, **options)

        return self.run(function, values, requires_grad)

    @contextmanager
    def tensors_replaced(self, state: dict[str, Any]) -> Iterator[None]:
        """Replace the parameters and buffers of the module within the block.

        This has the same effect as `torch.func.functional_call`, but is faster.
        """
        originals = [store[key] for store, key, _ in self.slots]
        for store, key, name in self.slots:
            store[key] = state[name]
        try:
            yield
        finally:
            for (store, key, _), original in zip(self.slots, originals, strict=True):
                store[key] = original

    def __repr__(self) -> str:
        return "from_torch(module)"


def tensors_in(result: Any, torch: Any) -> list[Any]:
    """Return the tensors of a result, including those in lists, tuples and dicts."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        result = [*result.values()]
    if isinstance(result, (list, tuple)):
        return [t for part in result for t in tensors_in(part, torch)]
    return []


def graph_nodes(roots: Sequence[Any]) -> list[Any]:
    """Return the nodes of PyTorch's graph that the roots depend on."""
    stack = [*roots]
    seen: dict[Any, None] = {}
    while stack:
        function = stack.pop()
        if function is not None and function not in seen:
            seen[function] = None
            stack += [other for other, _ in function.next_functions]
    return [*seen]


def tensors_equal(a: Any, b: Any) -> bool:
    """Return whether two tensors are equal; NaN equals NaN."""
    return bool(((a == b) | ((a != a) & (b != b))).all())


def arrays_equal(a: Array, b: Array) -> bool:
    """Return whether two arrays are equal; NaN equals NaN."""
    return bool(npx.array_equal(a, npx.to_host(b), equal_nan=a.dtype.kind == "f"))
