"""Reading PyTorch's files of weights without PyTorch, by an unpickler that can run no code.

A pickle names functions to call. This unpickler knows the few that build tensors, in implementations of its own, and
rejects any other name before anything is called.
"""

import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from train.errors import UserError, one_line

DTYPES = {
    "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "BFloat16Storage": "<u2",
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "<i1", "ByteStorage": "<u1",
    "BoolStorage": "<u1",
}  # fmt: skip
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of a file of PyTorch before 1.6
MAX_VALUES = 1 << 40


class StorageType(NamedTuple):
    """The dtype of a storage."""

    name: str


class Storage:
    """The values of a storage, which a legacy file has after the pickle that names it."""

    def __init__(self, kind: StorageType, n_values: int) -> None:
        self.dtype, self.is_bfloat16 = np.dtype(DTYPES[kind.name]), kind.name == "BFloat16Storage"
        self.n_values, self.values = n_values, np.zeros(0, self.dtype)

    def read(self, data: bytes) -> None:
        """Set the values. ValueError for another number of them."""
        self.values = np.frombuffer(data, self.dtype)
        if len(self.values) != self.n_values:
            raise ValueError(f"expected a storage of {self.n_values} values; got {len(self.values)}")


class StoredTensor(NamedTuple):
    """A view of a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def array(self) -> Any:
        """Return the tensor as an array; bfloat16 as float32. ValueError for a view beyond the storage."""
        values, last = self.storage.values, self.offset
        if min((*self.shape, *self.strides, self.offset), default=0) < 0 or len(self.shape) != len(self.strides):
            raise ValueError("expected a tensor within its storage; got negative sizes")
        if 0 not in self.shape:
            last += sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
            if last >= len(values):
                raise ValueError(f"expected a tensor within its storage of {len(values)} values; got index {last}")
        strides = tuple(stride * values.itemsize for stride in self.strides)
        view = np.lib.stride_tricks.as_strided(values[self.offset :], self.shape, strides, writeable=False)
        return bfloat16_values(view) if self.storage.is_bfloat16 else view.copy()


def bfloat16_values(bits: Any) -> Any:
    """Return bfloat16 numbers, given as uint16, as float32: their upper 16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rebuild_tensor(storage: Any, offset: int, shape: Any, strides: Any, *unused: Any) -> StoredTensor:
    """Return a view of a storage: torch._utils._rebuild_tensor_v2."""
    if not isinstance(storage, Storage) or not all(type(n) is int for n in (offset, *shape, *strides)):
        raise pickle.UnpicklingError("expected a tensor of a storage")
    return StoredTensor(storage, offset, tuple(shape), tuple(strides))


def rebuild_parameter(tensor: Any, *unused: Any) -> Any:
    """Return the tensor of a parameter: torch._utils._rebuild_parameter."""
    return tensor


KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): rebuild_parameter,
    **{("torch", name): StorageType(name) for name in DTYPES},
}


class TensorUnpickler(pickle.Unpickler):
    """An unpickler of dictionaries of tensors; `storages` collects their storages by key."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.storages: dict[str, Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in KNOWN:
            raise pickle.UnpicklingError(f"'{module}.{name}', which could run code")
        return KNOWN[module, name]

    def persistent_load(self, pid: Any) -> Storage:
        kind, storage_type, key, _, n_values = pid[:5]
        is_valid = kind == "storage" and isinstance(storage_type, StorageType) and type(key) is str
        if not (is_valid and type(n_values) is int and 0 <= n_values < MAX_VALUES and pid[5:] in ((), (None,))):
            raise pickle.UnpicklingError("expected a storage of numbers")
        return self.storages.setdefault(key, Storage(storage_type, n_values))


def read_torch_file(path: Path) -> dict[str, Any]:
    """Return the arrays of a pytorch_model.bin by name. Raises UserError, and runs nothing that the file contains."""
    try:
        tensors = read_zip(path) if zipfile.is_zipfile(path) else read_legacy(path)
        if not isinstance(tensors, dict):
            raise ValueError(f"expected a dictionary of tensors; got {type(tensors).__name__}")
        return {str(name): tensor.array() for name, tensor in tensors.items() if isinstance(tensor, StoredTensor)}
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path}: expected a pickle of tensors only; got {one_line(error)}; try a copy in safetensors"
        ) from None
    except (
        ValueError, TypeError, KeyError, IndexError, AttributeError, EOFError, OverflowError, RecursionError,
        zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError,
    ) as error:  # fmt: skip
        raise UserError(
            f"{path}: expected PyTorch weights; got '{one_line(error) or type(error).__name__}'; try another copy"
        ) from None


def read_zip(path: Path) -> Any:
    """Read the format of PyTorch since 1.6: a zip file of a pickle and one file for each storage."""
    with zipfile.ZipFile(path) as archive:
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError("expected one data.pkl in the zip file")
        folder = pickles[0].removesuffix("data.pkl")
        order = f"{folder}byteorder"
        if order in archive.namelist() and archive.read(order) != b"little":
            raise ValueError("expected little-endian numbers; got big-endian ones")
        unpickler = TensorUnpickler(io.BytesIO(archive.read(pickles[0])))
        tensors = unpickler.load()
        for key, storage in unpickler.storages.items():
            info = archive.getinfo(f"{folder}data/{key}")
            if info.file_size != storage.n_values * storage.dtype.itemsize:  # before a compressed file fills the memory
                raise ValueError(f"expected a storage of {storage.n_values} values; got {info.file_size} bytes")
            storage.read(archive.read(info))
    return tensors


def read_legacy(path: Path) -> Any:
    """Read the format of PyTorch before 1.6: pickles of magic number, version, machine, tensors, keys; storages."""
    with open(path, "rb") as file:
        magic, _, machine, *_ = (TensorUnpickler(file).load() for _ in range(3))
        if magic != LEGACY_MAGIC or not machine.get("little_endian"):
            raise ValueError("a file without PyTorch's magic number")
        unpickler = TensorUnpickler(file)
        tensors, keys = unpickler.load(), TensorUnpickler(file).load()
        for key in keys:
            storage = unpickler.storages[key]
            n_values = int.from_bytes(file.read(8), "little")
            if n_values != storage.n_values:
                raise ValueError(f"expected a storage of {storage.n_values} values; got {n_values}")
            storage.read(file.read(n_values * storage.dtype.itemsize))
    return tensors
