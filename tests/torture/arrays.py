"""Failing allocations of NumPy: the n-th array that a program creates gets no memory.

NumPy takes the memory of arrays from a handler (NEP 49). The handler set here counts the requests and returns NULL
once.
"""

import ctypes

import numpy as np

SET_HANDLER, GET_HANDLER = 304, 305  # indices of PyDataMem_SetHandler and _GetHandler in NumPy's table of C functions
NAME = b"mem_handler"
SIZE, POINTER = ctypes.c_size_t, ctypes.c_void_p
ALLOCATORS = {"malloc": (POINTER, POINTER, SIZE), "calloc": (POINTER, POINTER, SIZE, SIZE)}  # result and arguments


class Handler(ctypes.Structure):
    """PyDataMem_Handler of NumPy's C interface."""

    _fields_ = [
        ("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("context", POINTER),
        ("malloc", POINTER), ("calloc", POINTER), ("realloc", POINTER), ("free", POINTER),
    ]  # fmt: skip


class FailingAllocations:
    """Makes allocation number `first` of this process fail, counted from now on.

    Existing arrays keep their handler. The new one is used until the process ends.

    Attributes:
        count: number of allocations so far.
    """

    def __init__(self, first):
        self.first, self.count = first, 0
        api = ctypes.pythonapi
        api.PyCapsule_GetPointer.restype = POINTER
        api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        api.PyCapsule_New.restype = ctypes.py_object
        api.PyCapsule_New.argtypes = [POINTER, ctypes.c_char_p, POINTER]
        table = api.PyCapsule_GetPointer(np._core._multiarray_umath._ARRAY_API, None)
        functions = ctypes.cast(table, ctypes.POINTER(POINTER))
        default = ctypes.PYFUNCTYPE(ctypes.py_object)(functions[GET_HANDLER])()
        address = api.PyCapsule_GetPointer(default, NAME)
        # A copy with two other functions. `free` stays, because NumPy calls it while an exception is being raised.
        self.handler = Handler.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(Handler)))
        self.callbacks = []
        for name, types in ALLOCATORS.items():
            allocate = ctypes.PYFUNCTYPE(*types)(getattr(self.handler, name))  # expects to hold the GIL
            self.callbacks.append(ctypes.CFUNCTYPE(*types)(self._counting(allocate)))
            setattr(self.handler, name, ctypes.cast(self.callbacks[-1], POINTER))
        set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(functions[SET_HANDLER])
        set_handler(api.PyCapsule_New(ctypes.addressof(self.handler), NAME, None))

    def _counting(self, allocate):
        def call(*arguments):
            self.count += 1
            return None if self.count == self.first else allocate(*arguments)

        return call
