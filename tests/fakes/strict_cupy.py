"""A strict stand-in for CuPy: its array holds NumPy's, but refuses what a GPU's array refuses. For test_device.py.

In the spirit of array_api_strict: whatever works here has said where its arrays lie. Refused are operations of a device
array with a NumPy array, NumPy functions on device arrays that CuPy does not have, and every conversion but `get`. What
makes the host wait for the device (get, item, float, bool, iteration, a boolean index, unique, nonzero) is counted.

    with device() as cupy:              # npx.use_device("cuda"), with this module in CuPy's place
        x = npx.ones((2, 3))            # a strict array; kernels run by their references
        x + np.ones(3)                  # TypeError
    cupy.waits                          # the reads, by name

With `device(cuda=True)` the versions registered for CuPy run, their CUDA kernels in the emulator and their products
through cuBLAS's stand-in (strict_cuda.py).
"""

import importlib
import sys
import types
from contextlib import contextmanager

import numpy as np
import pytest

import npx
from npx.cuda import blas, cublas, launch
from tests.fakes import strict_cuda, strict_graphs
from tests.fakes.strict_graphs import STATE, computed, forbidden

WAITING = {"unique", "nonzero", "flatnonzero", "argwhere", "array_equal", "allclose", "compress", "unravel_index"}
ARRAYS = (np.ndarray,)


def unwrap(x):
    """Device arrays as the NumPy arrays they hold, in any nest of arguments; TypeError for a host array among them."""
    if isinstance(x, ndarray):
        return x.held
    if isinstance(x, ARRAYS):
        raise TypeError(f"Unsupported type {type(x)} beside a device array")
    if isinstance(x, (tuple, list)):
        return type(x)(unwrap(item) for item in x)
    return {k: unwrap(v) for k, v in x.items()} if isinstance(x, dict) else x


def wrap(x):
    """NumPy arrays, and NumPy's scalars, which are arrays on a GPU, as device arrays."""
    if isinstance(x, (np.ndarray, np.generic)):
        return ndarray(np.asarray(x))
    return type(x)(map(wrap, x)) if isinstance(x, (tuple, list)) else x


def refuse(name, kwargs):
    """TypeError for an argument that the function has in NumPy and not in CuPy."""
    missing = kwargs.keys() & {"initial", "order", "stable"} or (name != "copyto" and kwargs.keys() & {"where"})
    if missing or kwargs.get("kind") not in (None, "stable"):
        raise TypeError(f"{name} of a device array with {kwargs}")


def counted(name, found, *sources):
    """Count a kernel of CuPy's own, its name and the bytes of what it reads and writes, unless `found` is a view."""
    arrays = [x.held for x in sources if isinstance(x, ndarray)]
    if isinstance(found, (np.ndarray, np.generic)) and not any(np.may_share_memory(found, x) for x in arrays):
        CUPY.kernels.append((name, found.nbytes + sum(x.nbytes for x in arrays)))
    return found


def derived(found, *sources):
    """`wrap`, a view knowing whose memory it shows, as on a GPU."""
    if isinstance(found, (tuple, list)):
        return type(found)(derived(part, *sources) for part in found)
    whole = wrap(found)
    for source in sources:
        if isinstance(whole, ndarray) and isinstance(source, ndarray) and np.may_share_memory(found, source.held):
            whole.base = source if source.base is None else source.base
    return whole


class ndarray:
    """An array on the device."""

    __slots__ = ("base", "held")

    def __init__(self, held, base=None):
        self.held, self.base = held, base

    def get(self):
        wait("get")
        return self.held.copy()

    def item(self):
        wait("item")
        return self.held.item()

    def tolist(self):
        raise TypeError("tolist of a device array")

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`.")

    def __float__(self):
        wait("float")
        return float(self.held)

    def __int__(self):
        wait("int")
        return int(self.held)

    __index__ = __int__

    def __bool__(self):
        wait("bool")
        return bool(self.held)

    def __len__(self):
        return len(self.held)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __repr__(self):
        return f"device {self.held!r}"

    def __getitem__(self, index):
        self._watch(index)
        return derived(self.held[unwrap(index)], self)

    def __setitem__(self, index, value):
        if isinstance(value, (list, *ARRAYS)):
            raise TypeError(f"Unsupported type {type(value)} beside a device array")
        computed(np.ndarray.__setitem__, (self.held, unwrap(index), unwrap(value)), {}, writes=True)
        CUPY.kernels.append(("=", self.held[unwrap(index)].nbytes + getattr(value, "nbytes", 0)))

    def _watch(self, index):
        for part in index if isinstance(index, tuple) else (index,):
            if isinstance(part, ndarray) and part.dtype == bool:
                wait("boolean index")
            if isinstance(part, (list, tuple, np.ndarray)):
                STATE.pinned(np.asarray(part).nbytes)  # an upload within CuPy

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **kwargs):
        if method != "__call__":
            raise TypeError(f"{ufunc.__name__}.{method} of a device array")
        used(ufunc.__name__)
        kwargs = unwrap(kwargs) | ({"out": unwrap(out)} if out else {})
        refuse(ufunc.__name__, kwargs)
        found = computed(ufunc, unwrap(inputs), kwargs, writes=bool(out))
        touched = (*inputs, *(out or (found,)))
        CUPY.kernels.append((ufunc.__name__, sum(x.nbytes for x in touched if hasattr(x, "nbytes"))))
        return out[0] if out else wrap(found)

    def __array_function__(self, function, types, args, kwargs):
        return getattr(CUPY, function.__name__)(*args, **kwargs)


def _attribute(name):
    return property(lambda self: getattr(self.held, name))


def _method(name):
    def method(self, *args, **kwargs):
        if name in WAITING:
            wait(name)
        out = kwargs.get("out")
        refuse(name, kwargs)
        if name == "sort" and not self.held.flags.c_contiguous:
            raise NotImplementedError("Sorting non-contiguous array is not supported.")
        own = getattr(np.ndarray, name)
        writes = name in ("fill", "sort") or out is not None
        found = counted(name, computed(own, (self.held, *unwrap(args)), unwrap(kwargs), writes), self)
        return out if out is not None else derived(found, self)

    return method


def _operator(name):
    ufunc = getattr(np, name)
    return (
        lambda self, other: ufunc(self, other),
        lambda self, other: ufunc(other, self),
        lambda self, other: ufunc(self, other, out=(self,)),
    )


for _name in ("shape", "dtype", "ndim", "size", "itemsize", "nbytes", "flags", "strides"):
    setattr(ndarray, _name, _attribute(_name))
for _name in (
    *("astype", "reshape", "copy", "sum", "mean", "max", "min", "argmax", "argmin", "swapaxes", "transpose", "ravel"),
    *("any", "all", "view", "fill", "take", "sort", "argsort", "squeeze", "repeat", "nonzero", "clip", "cumsum"),
    "conj",
):
    setattr(ndarray, _name, _method(_name))
for _name, _ufunc in (
    *(("add", "add"), ("sub", "subtract"), ("mul", "multiply"), ("truediv", "divide"), ("pow", "power")),
    *(("floordiv", "floor_divide"), ("mod", "remainder"), ("and", "bitwise_and"), ("or", "bitwise_or")),
    *(("matmul", "matmul"), ("xor", "bitwise_xor")),
):
    _forward, _backward, _in_place = _operator(_ufunc)
    setattr(ndarray, f"__{_name}__", _forward)
    setattr(ndarray, f"__r{_name}__", _backward)
    setattr(ndarray, f"__i{_name}__", _in_place)
for _name, _ufunc in (
    *(("lt", "less"), ("le", "less_equal"), ("gt", "greater"), ("ge", "greater_equal")),
    *(("eq", "equal"), ("ne", "not_equal")),
):
    setattr(ndarray, f"__{_name}__", _operator(_ufunc)[0])
ndarray.T = property(lambda self: derived(self.held.T, self))
ndarray.real = property(lambda self: derived(self.held.real, self))
ndarray.imag = property(lambda self: derived(self.held.imag, self))
ndarray.data = property(lambda self: types.SimpleNamespace(ptr=self.held.ctypes.data))
ndarray.__neg__ = lambda self: np.negative(self)
ndarray.__invert__ = lambda self: np.invert(self)
ndarray.__abs__ = lambda self: np.absolute(self)
ndarray.__hash__ = None
ndarray.__module__ = "strict"  # no kernel is registered for it, so that references run; "cupy" in device(cuda=True)


class Add:
    """cupy.add, with the `at` that scatters."""

    def __call__(self, *args, **kwargs):
        return np.add(*args, **kwargs)

    @staticmethod
    def at(x, index, values):
        computed(np.add.at, (unwrap(x), unwrap(index), unwrap(values)), {}, writes=True)


class Module(types.ModuleType):
    """The module: creation from host data, NumPy's functions on device arrays, a memory pool."""

    ndarray = ndarray
    add = Add()

    def __init__(self):
        super().__init__("strict")
        self.waits, self.names = [], set()
        self.kernels, self.allocations = [], 0  # of CuPy's own: (name, bytes); and calls of `empty`
        self.pool = strict_cuda.DefaultPool()

    @staticmethod
    def asarray(x, dtype=None):
        """An upload: the one way in from the host."""
        if isinstance(x, ndarray):
            return x if dtype is None else x.astype(dtype, copy=False)
        assert STATE.recording is None, "an upload in a graph, from memory that will be gone"
        return ndarray(np.array(x, dtype=dtype))

    def get_default_memory_pool(self):
        return self.pool

    @staticmethod
    def get_default_pinned_memory_pool():
        return types.SimpleNamespace(malloc=strict_graphs.pinned)

    cuda, RawModule, __version__ = strict_cuda.CUDA, strict_cuda.RawModule, "14.2.0"
    products = []  # what set_compute_type was called with
    _core = types.SimpleNamespace(
        _routines_linalg=types.SimpleNamespace(
            COMPUTE_TYPE_DEFAULT="default",
            COMPUTE_TYPE_TF32="tf32",
            set_compute_type=lambda dtype, kind: Module.products.append((np.dtype(dtype).name, kind)),
            get_compute_type=lambda dtype: Module.products[-1][1] if Module.products else "default",
        )
    )

    def __getattr__(self, name):
        value = getattr(np, name)
        if not callable(value) or isinstance(value, type):
            return value

        def function(*args, **kwargs):
            used(name)
            if name in WAITING:
                wait(name)
            out = kwargs.get("out")
            refuse(name, kwargs)
            found = computed(value, unwrap(args), unwrap(kwargs), writes=out is not None or name == "copyto")
            if name != "empty":
                counted(name, found, *args)
            else:
                CUPY.allocations += 1
            if name == "where" and not isinstance(found, tuple) and found.dtype.name == "bfloat16":
                found = found.astype(np.float32)  # CuPy's `where` knows no bfloat16
            return out if out is not None else derived(found, *args)

        return function


CUPY = Module()
_engine = importlib.import_module("npx.array")


def wait(name):
    forbidden()
    CUPY.waits.append(name)


def used(name):
    CUPY.names.add(name)


@contextmanager
def device(cuda=False):
    """The block computes on the strict device; yields the module, whose `waits` begin empty."""
    CUPY.waits.clear()
    CUPY.names.clear()
    CUPY.kernels.clear()
    CUPY.allocations, CUPY.pool = 0, strict_cuda.DefaultPool()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_engine, "_cupy", CUPY)
        patch.setattr(_engine, "_device", "cuda")
        if cuda:
            patch.setattr(ndarray, "__module__", "cupy")
            patch.setattr(cublas, "load_cublas", strict_cuda.load_cublas)
            patch.setattr(blas, "_own_handle", None)
            STATE.__init__()
            for name, module in ({"cupy": CUPY} | strict_cuda.MODULES).items():
                patch.setitem(sys.modules, name, module)
        strict_cuda.CUBLAS.calls.clear()
        strict_cuda.LT.__init__()
        launch._function.cache_clear()
        yield CUPY
    launch._function.cache_clear()


def kernels_by_reference():
    """What the strict device runs, for NumPy arrays as well: so both give the same bits."""
    return npx.kernel_mode("reference")
