"""Read PyTorch's weight files without PyTorch, with an unpickler that cannot run code.

A pickle names functions to call. This unpickler has its own implementations of the few functions that build tensors,
and rejects any other name before anything is called. It also rejects opcodes that tensors do not need, and modifies
only lists and dictionaries that the pickle creates.
"""

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from train.errors import UserError, one_line
from train.formats.archive import open_archive, open_untrusted

DTYPES = {
    "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "BFloat16Storage": "<u2",
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "<i1", "ByteStorage": "<u1",
    "BoolStorage": "<u1",
}  # fmt: skip
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of a file written by PyTorch before 1.6
MAX_VALUES = 1 << 40
# Maximum ratio of the tensors' size to the file's size: bfloat16 becomes float32, and tied tables have up to 4 names.
MAX_EXPANSION = 8
MAX_DIMENSIONS = 64  # the maximum in PyTorch and NumPy
MAX_PICKLE = 1 << 24  # bytes; the unpickled objects take up to 64 times as much memory
OPCODES = (  # opcodes of PyTorch's files, in protocols 2 to 5; strings of Python 2 are BINSTRING
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINSTRING "
    "SHORT_BINSTRING BINUNICODE SHORT_BINUNICODE "
    "EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT BINPUT LONG_BINPUT MEMOIZE BINGET "
    "LONG_BINGET GLOBAL STACK_GLOBAL BINPERSID REDUCE"
).split()


class StorageType(NamedTuple):
    """The dtype of a storage."""

    name: str


class Storage:
    """The values of a storage. In a legacy file, the values come after the pickle that names the storage."""

    def __init__(self, kind: StorageType, n_values: int) -> None:
        self.dtype = np.dtype(DTYPES[kind.name])
        self.is_bfloat16 = kind.name == "BFloat16Storage"
        self.n_values = n_values
        self.values = np.zeros(0, self.dtype)

    def read(self, data: bytes | memoryview) -> None:
        """Set the values; bfloat16 becomes float32. Raises ValueError for a wrong number of values."""
        if len(data) != self.n_values * self.dtype.itemsize:
            raise ValueError(f"a storage of {len(data)} bytes for {self.n_values} values")
        values = np.frombuffer(data, self.dtype)
        self.values = bfloat16_values(values) if self.is_bfloat16 else values


class StoredTensor(NamedTuple):
    """A view of a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def array(self) -> Any:
        """Return the tensor as a read-only array. Raises ValueError for a view that exceeds the storage."""
        values = self.storage.values
        last = self.offset
        if 0 not in self.shape:
            last += sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
            if last >= len(values):
                raise ValueError(f"a tensor that reads index {last} of a storage with {len(values)} values")
        strides = tuple(stride * values.itemsize for stride in self.strides)
        return np.lib.stride_tricks.as_strided(values[self.offset :], self.shape, strides, writeable=False)


def bfloat16_values(bits: Any) -> Any:
    """Convert bfloat16 numbers, given as uint16, to float32; a bfloat16 is the upper half of a float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


# A few bytes of a pickle can pass the same long tuple or list to a function many times. To limit the work, these
# functions accept only the arguments that PyTorch passes, and at most MAX_DIMENSIONS sizes. A list can be used once.


def rebuild_tensor(
    storage: Any, offset: int, shape: Any, strides: Any, grad: Any = None, hooks: Any = None, metadata: Any = None
) -> StoredTensor:
    """Return a view of a storage, like torch._utils._rebuild_tensor_v2."""
    if not len(shape) == len(strides) <= MAX_DIMENSIONS:
        raise pickle.UnpicklingError(f"a tensor with {len(shape)} sizes and {len(strides)} strides")
    sizes = (offset, *shape, *strides)
    if not (isinstance(storage, Storage) and all(type(n) is int and 0 <= n < MAX_VALUES for n in sizes)):
        raise pickle.UnpicklingError("a tensor without a storage or with invalid sizes")
    return StoredTensor(storage, offset, tuple(shape), tuple(strides))


def rebuild_parameter(tensor: Any, grad: Any = None, hooks: Any = None) -> Any:
    """Return the tensor of a parameter, like torch._utils._rebuild_parameter."""
    return tensor


def ordered_dict(items: Any = ()) -> Any:
    """Return an OrderedDict of the [key, value] pairs in a list, and empty the list, so that it is used only once."""
    pairs = [(key, value) for key, value in items]
    if pairs:
        items.clear()
    check_keys([key for key, _ in pairs])
    return OrderedDict(pairs)


def check_keys(keys: Sequence[Any]) -> None:
    """Raise UnpicklingError for keys that are neither names nor numbers, because hashing nested tuples is recursive."""
    if not all(type(key) in (str, int) for key in keys):
        raise pickle.UnpicklingError("a key that is not a name")


ALLOWED_NAMES: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): ordered_dict,
    ("torch._utils", "_rebuild_tensor_v2"): rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): rebuild_parameter,
    **{("torch", name): StorageType(name) for name in DTYPES},
}


# This is the Python implementation: the C implementation has no table of opcodes to change. The annotation is Any
# because the type stubs do not declare its methods.
PythonUnpickler: Any = pickle._Unpickler


class TensorUnpickler(PythonUnpickler):
    """An unpickler of dictionaries of tensors; `storages` collects their storages by key."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.storages: dict[str, Storage] = {}

    def reject(self) -> None:
        """Raise UnpicklingError, instead of running a forbidden opcode."""
        raise pickle.UnpicklingError("an opcode that no tensor needs")

    def load_build(self) -> None:
        """Ignore the attributes of a dictionary."""
        self.stack.pop()
        if type(self.stack[-1]) is not OrderedDict:
            raise pickle.UnpicklingError("attributes of an object")

    def load_setitem(self) -> None:
        """Set an item of a dictionary after checking its key."""
        check_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        """Set items of a dictionary after checking their keys."""
        check_keys(self.stack[::2])
        super().load_setitems()

    dispatch = dict.fromkeys(range(256), reject) | {
        opcode: PythonUnpickler.dispatch[opcode] for name in OPCODES for opcode in getattr(pickle, name)
    }
    dispatch |= {pickle.BUILD[0]: load_build, pickle.SETITEM[0]: load_setitem, pickle.SETITEMS[0]: load_setitems}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED_NAMES:
            raise pickle.UnpicklingError(f"'{module}.{name}', which could run code")
        return ALLOWED_NAMES[module, name]

    def persistent_load(self, pid: Any) -> Storage:
        kind, storage_type, key, _, n_values = pid[:5]
        is_valid = kind == "storage" and isinstance(storage_type, StorageType) and type(key) is str
        is_valid = is_valid and type(n_values) is int and 0 <= n_values < MAX_VALUES
        if not (is_valid and len(pid) <= 6 and pid[5:] in ((), (None,))):
            raise pickle.UnpicklingError("a storage of an unsupported dtype")
        return self.storages.setdefault(key, Storage(storage_type, n_values))


def read_torch_file(path: Path) -> dict[str, Any]:
    """Return the arrays of a pytorch_model.bin by name, without running code from the file.

    Raises UserError if the file is invalid.
    """
    with open_untrusted(path, "PyTorch weights") as file:
        try:
            tensors = read_zip(file) if zipfile.is_zipfile(file) else read_legacy(file)
        except pickle.UnpicklingError as error:
            raise UserError(
                f"{path}: expected a pickle of tensors only; got {one_line(error)[:200]}; try a conversion to "
                "safetensors"
            ) from None
        if not isinstance(tensors, dict):
            raise ValueError(f"a pickle of type {type(tensors).__name__}")
        arrays = {str(name): tensor.array() for name, tensor in tensors.items() if isinstance(tensor, StoredTensor)}
        n_bytes, size = sum(array.nbytes for array in arrays.values()), file.seek(0, os.SEEK_END)
        if n_bytes > MAX_EXPANSION * size:
            raise ValueError(f"tensors of {n_bytes:,} bytes in a file of {size:,} bytes")
        return arrays


def read_zip(file: BinaryIO) -> Any:
    """Read the format of PyTorch since 1.6: a zip file with a pickle and one file for each storage."""
    with open_archive(file) as archive:
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError(f"a zip file with {len(pickles)} entries named data.pkl")
        folder = pickles[0].removesuffix("data.pkl")
        order = f"{folder}byteorder"
        if order in archive.namelist() and archive.read(order) != b"little":
            raise ValueError("big-endian numbers")
        unpickler = TensorUnpickler(io.BytesIO(archive.read(pickles[0])[:MAX_PICKLE]))
        tensors = unpickler.load()
        for key, storage in unpickler.storages.items():
            storage.read(archive.read(f"{folder}data/{key}"))
    return tensors


def read_legacy(weights: BinaryIO) -> Any:
    """Read PyTorch's format before 1.6: pickles of magic number, version, machine, tensors and keys; then storages."""
    weights.seek(0)
    content = weights.read()
    file = io.BytesIO(content[:MAX_PICKLE])
    magic, _, machine, *_ = (TensorUnpickler(file).load() for _ in range(3))
    if magic != LEGACY_MAGIC or not machine.get("little_endian"):
        raise ValueError("a file without PyTorch's magic number")
    unpickler = TensorUnpickler(file)
    tensors = unpickler.load()
    keys = TensorUnpickler(file).load()
    check_keys(keys)
    start = file.tell()
    for key in keys:
        storage = unpickler.storages[key]
        n_values = int.from_bytes(content[start : start + 8], "little")
        start += 8
        if n_values != storage.n_values:
            raise ValueError(f"a storage of {n_values} values instead of {storage.n_values}")
        end = start + n_values * storage.dtype.itemsize
        storage.read(memoryview(content)[start:end])
        start = end
    return tensors
