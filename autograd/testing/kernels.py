"""`check_kernel`: the fast versions of a kernel, and of its gradient, against the references."""

from typing import Any

import npx
from autograd.testing.rules import LAYOUTS, relaid
from autograd.testing.writing import Named, reproduction
from npx import Array
from npx.registry import KernelMismatch, compare, mapped


def check_kernel(
    kernel: npx.Kernel, *args: Any, gradient: dict[str, Any] | None = None, seed: int = 0, **kwargs: Any
) -> list[str]:
    """Check each fast version of `kernel` for arguments like these against its reference, and each of its gradient.

    Results, and what is left in every argument, must agree in value, shape and dtype, for the memory layout given and
    for others, on every engine present that has a version for the dtype of the first argument. What a version saves for
    its gradient is its own affair; the gradients themselves, for a random gradient of the output and the options
    `gradient`, must agree. Returns the names of the versions checked. Raises npx.KernelMismatch naming the first
    difference, with a line to reproduce it.
    """
    checked = []
    before = npx.device()
    try:
        for device, engine in (("cpu", "numpy"), ("cuda", "cupy")):
            key = engine, args[0].dtype.name
            if key not in kernel.versions or not present(device):
                continue
            npx.use_device(device)
            name = getattr(kernel.versions[key], "__name__", "fast version")
            for layout in ("given", *LAYOUTS):
                what = f"{kernel.name}, {name}, {layout} layout"
                # Twice the same, in memory of its own: a kernel may write to its arguments.
                pairs = [run_kernel(kernel, chosen, layout, args, kwargs) for chosen in (None, key)]
                compare(what, *(pair[0] for pair in pairs))
                compare(f"{what}, arguments afterwards", *(pair[1] for pair in pairs))
                if kernel.grad is None or pairs[0][2].values is None:
                    continue
                g = npx.random.normal(npx.Key(seed, 0, 0), pairs[0][0].shape, pairs[0][0].dtype)
                results = []
                for _, _, saved in pairs:
                    arrays, named = moved(g, layout), moved(gradient or {}, layout)
                    results.append((saved.gradient(arrays, **named), arrays, named))
                compare(f"{kernel.grad.name}, {name}, {layout} layout", *(found[0] for found in results))
                compare(f"{kernel.grad.name}, {name}, {layout} layout, arguments afterwards", *(f[1:] for f in results))
                compare(f"{kernel.grad.name}, gradient of the output afterwards", moved(g, layout), results[1][1])
            checked.append(name)
    except KernelMismatch as error:
        setup = "from npx import KERNELS"
        options = kwargs | ({"gradient": gradient} if gradient else {}) | ({"seed": seed} if seed else {})
        line = reproduction("check_kernel", Named(f"KERNELS[{kernel.name!r}]"), args, options, setup)
        raise KernelMismatch(f"check_kernel: {error}\nreproduce: {line}") from error
    finally:
        npx.use_device(before)
    return checked


def run_kernel(
    kernel: npx.Kernel, key: tuple[str, str] | None, layout: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any, Any]:
    """What the version of `key` (None: the reference) gives for copies in a layout, those afterwards, what it saved."""
    given, named = moved((args, kwargs), layout)
    result = kernel.run(key, *given, **named)
    y, saved = (result, None) if kernel.grad is None else result
    return y, (given, named), saved


def present(device: str) -> bool:
    """Whether `device` can be used here."""
    before = npx.device()
    try:
        npx.use_device(device)
    except RuntimeError:
        return False
    npx.use_device(before)
    return True


def moved(value: Any, layout: str) -> Any:
    """Copies, on the current device and in a memory layout, of the arrays in a value."""

    def copy(x: Array) -> Array:
        own = npx.asarray(npx.from_host(npx.to_host(x)).copy())
        return own if layout == "given" else relaid(own, layout)

    return mapped(copy, value)
