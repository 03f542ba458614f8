"""A strict fake of CuPy: its arrays wrap NumPy arrays and reject whatever a GPU array rejects.

Like array_api_strict, it accepts only code that is explicit, here about the device of each array. The fake rejects
operations between a device array and a NumPy array, NumPy functions that CuPy lacks, and every conversion except `get`.
It records operations that make the host wait for the device (get, item, float, bool, iteration, a boolean index,
unique, nonzero).

    with device() as cupy:              # npx.use_device("cuda") with this module instead of CuPy
        x = npx.ones((2, 3))            # a strict array; kernels run as references
        x + np.ones(3)                  # TypeError
    cupy.waits                          # the names of the operations that waited

With `device(cuda=True)` the versions registered for CuPy run, with CUDA kernels in the emulator and matmuls on a fake
cuBLAS (strict_cuda.py).
"""

import importlib
import sys
import types
from collections import namedtuple
from contextlib import contextmanager

import numpy as np
import pytest

import npx
from npx.cuda import blas, cublas, launch
from tests.fakes import strict_cuda, strict_graphs
from tests.fakes.strict_graphs import STATE, computed, forbidden

WAITING = {"unique", "nonzero", "flatnonzero", "argwhere", "array_equal", "allclose", "compress", "unravel_index"}
ARRAYS = (np.ndarray,)
FLAGS = namedtuple("FLAGS", "c_contiguous f_contiguous owndata")  # arrays on a GPU cannot be read-only


def unwrap(x):
    """Replace device arrays in nested arguments with the NumPy arrays they hold. Raises TypeError for a host array."""
    if isinstance(x, ndarray):
        return x.held
    if isinstance(x, ARRAYS):
        raise TypeError(f"Unsupported type {type(x)} next to a device array")
    if isinstance(x, (tuple, list)):
        return type(x)(unwrap(item) for item in x)
    return {k: unwrap(v) for k, v in x.items()} if isinstance(x, dict) else x


def wrap(x):
    """Convert NumPy arrays, and NumPy scalars, which are arrays on a GPU, to device arrays."""
    if isinstance(x, (np.ndarray, np.generic)):
        return ndarray(np.asarray(x))
    return type(x)(map(wrap, x)) if isinstance(x, (tuple, list)) else x


def reject_arguments(name, kwargs):
    """Raise TypeError for an argument that NumPy's function accepts but CuPy's does not."""
    missing = kwargs.keys() & {"initial", "order", "stable"} or (name != "copyto" and kwargs.keys() & {"where"})
    if missing or kwargs.get("kind") not in (None, "stable"):
        raise TypeError(f"{name} of a device array with {kwargs}")


def count_kernel(name, result, *sources):
    """Return the result. Unless it is a view, record the CuPy kernel's name and the bytes that it reads and writes."""
    arrays = [x.held for x in sources if isinstance(x, ndarray)]
    if isinstance(result, (np.ndarray, np.generic)) and not any(np.may_share_memory(result, x) for x in arrays):
        CUPY.kernels.append((name, result.nbytes + sum(x.nbytes for x in arrays)))
    return result


def wrap_result(result, *sources):
    """Wrap a result; a view gets the `base` whose memory it shares."""
    if isinstance(result, (tuple, list)):
        return type(result)(wrap_result(part, *sources) for part in result)
    wrapped = wrap(result)
    for source in sources:
        if isinstance(wrapped, ndarray) and isinstance(source, ndarray) and np.may_share_memory(result, source.held):
            wrapped.base = source if source.base is None else source.base
    return wrapped


class ndarray:
    """An array on the device."""

    __slots__ = ("base", "held")

    def __init__(self, held, base=None):
        self.held = held  # the NumPy array
        self.base = base  # the array whose memory it shares, or None

    def get(self):
        wait("get")
        return self.held.copy()

    def item(self):
        wait("item")
        return self.held.item()

    def tolist(self):
        wait("tolist")
        return self.held.tolist()

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
        return wrap_result(self.held[unwrap(index)], self)

    def __setitem__(self, index, value):
        if isinstance(value, (list, *ARRAYS)):
            raise TypeError(f"Unsupported type {type(value)} next to a device array")
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
        record_name(ufunc.__name__)
        kwargs = unwrap(kwargs) | ({"out": unwrap(out)} if out else {})
        reject_arguments(ufunc.__name__, kwargs)
        result = computed(ufunc, unwrap(inputs), kwargs, writes=bool(out))
        arrays = (*inputs, *(out or (result,)))
        CUPY.kernels.append((ufunc.__name__, sum(x.nbytes for x in arrays if hasattr(x, "nbytes"))))
        return out[0] if out else wrap(result)

    def __array_function__(self, function, types, args, kwargs):
        return getattr(CUPY, function.__name__)(*args, **kwargs)


def _attribute(name):
    return property(lambda self: getattr(self.held, name))


def _method(name):
    def method(self, *args, **kwargs):
        if name in WAITING:
            wait(name)
        out = kwargs.get("out")
        reject_arguments(name, kwargs)
        if name == "sort" and not self.held.flags.c_contiguous:
            raise NotImplementedError("Sorting non-contiguous array is not supported.")
        numpy_method = getattr(np.ndarray, name)
        writes = name in ("fill", "sort") or out is not None
        result = count_kernel(name, computed(numpy_method, (self.held, *unwrap(args)), unwrap(kwargs), writes), self)
        return out if out is not None else wrap_result(result, self)

    return method


def _operator(name):
    ufunc = getattr(np, name)

    def forward(self, other):
        return NotImplemented if getattr(other, "__array_ufunc__", ufunc) is None else ufunc(self, other)

    return forward, lambda self, other: ufunc(other, self), lambda self, other: ufunc(self, other, out=(self,))


ndarray.flags = property(lambda x: FLAGS(x.held.flags.c_contiguous, x.held.flags.f_contiguous, x.held.flags.owndata))
for _name in ("shape", "dtype", "ndim", "size", "itemsize", "nbytes", "strides"):
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
ndarray.T = property(lambda self: wrap_result(self.held.T, self))
ndarray.real = property(lambda self: wrap_result(self.held.real, self))
ndarray.imag = property(lambda self: wrap_result(self.held.imag, self))
ndarray.data = property(lambda self: types.SimpleNamespace(ptr=self.held.ctypes.data))
ndarray.__neg__ = lambda self: np.negative(self)
ndarray.__invert__ = lambda self: np.invert(self)
ndarray.__abs__ = lambda self: np.absolute(self)
ndarray.__hash__ = None
ndarray.__module__ = "strict"  # no kernel is registered for "strict", so references run; "cupy" in device(cuda=True)


class Add:
    """cupy.add, with `at` for scattered additions."""

    def __call__(self, *args, **kwargs):
        return np.add(*args, **kwargs)

    @staticmethod
    def at(x, index, values):
        computed(np.add.at, (unwrap(x), unwrap(index), unwrap(values)), {}, writes=True)


class Module(types.ModuleType):
    """The fake module: array creation, NumPy's functions on device arrays, a memory pool."""

    ndarray = ndarray
    add = Add()

    def __init__(self):
        super().__init__("strict")
        self.waits = []  # the operations that made the host wait
        self.names = set()  # the functions called
        self.kernels = []  # CuPy's kernels: (name, bytes)
        self.allocations = 0  # calls to `empty`
        self.pool = strict_cuda.DefaultPool()

    @staticmethod
    def asarray(x, dtype=None):
        """Upload an array, the only way from the host to the device."""
        if isinstance(x, ndarray):
            return x if dtype is None else x.astype(dtype, copy=False)
        assert STATE.recording is None, "an upload during the capture of a graph, from memory that will be freed"
        return ndarray(np.array(x, dtype=dtype))

    def get_default_memory_pool(self):
        return self.pool

    @staticmethod
    def get_default_pinned_memory_pool():
        return types.SimpleNamespace(malloc=strict_graphs.pinned)

    cuda = strict_cuda.CUDA
    RawModule = strict_cuda.RawModule
    __version__ = "14.2.0"
    compute_types = []  # the arguments of set_compute_type
    _core = types.SimpleNamespace(
        _routines_linalg=types.SimpleNamespace(
            COMPUTE_TYPE_DEFAULT="default",
            COMPUTE_TYPE_TF32="tf32",
            set_compute_type=lambda dtype, kind: Module.compute_types.append((np.dtype(dtype).name, kind)),
            get_compute_type=lambda dtype: Module.compute_types[-1][1] if Module.compute_types else "default",
        )
    )

    def __getattr__(self, name):
        value = getattr(np, name)
        if not callable(value) or isinstance(value, type):
            return value

        def function(*args, **kwargs):
            record_name(name)
            if name in WAITING:
                wait(name)
            out = kwargs.get("out")
            reject_arguments(name, kwargs)
            result = computed(value, unwrap(args), unwrap(kwargs), writes=out is not None or name == "copyto")
            if name != "empty":
                count_kernel(name, result, *args)
            else:
                CUPY.allocations += 1
            if name == "where" and not isinstance(result, tuple) and result.dtype.name == "bfloat16":
                result = result.astype(np.float32)  # CuPy's `where` does not support bfloat16
            return out if out is not None else wrap_result(result, *args)

        return function


CUPY = Module()
_backend = importlib.import_module("npx.backend")


def wait(name):
    forbidden()
    CUPY.waits.append(name)


def record_name(name):
    CUPY.names.add(name)


@contextmanager
def device(cuda=False):
    """Compute on the strict device within the block; yield the module, with its records cleared."""
    CUPY.waits.clear()
    CUPY.names.clear()
    CUPY.kernels.clear()
    CUPY.allocations = 0
    CUPY.pool = strict_cuda.DefaultPool()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_backend, "_cupy", CUPY)
        patch.setattr(_backend, "_device", "cuda")
        if cuda:
            patch.setattr(ndarray, "__module__", "cupy")
            patch.setattr(cublas, "load_cublas", strict_cuda.load_cublas)
            patch.setattr(blas, "_graph_handle", None)
            STATE.__init__()
            for name, module in ({"cupy": CUPY} | strict_cuda.MODULES).items():
                patch.setitem(sys.modules, name, module)
        strict_cuda.CUBLAS.calls.clear()
        strict_cuda.LT.__init__()
        launch._function.cache_clear()
        yield CUPY
    launch._function.cache_clear()


def kernels_by_reference():
    """Run references for NumPy arrays too, as on the strict device, so that both give the same bits."""
    return npx.kernel_mode("reference")
