"""DLPack: Tensors share memory with arrays of other libraries."""

import numpy as np
import pytest

import npx
from autograd import Tensor


def test_another_library_reads_the_values_without_a_copy():
    tensor = Tensor(np.arange(6.0).reshape(2, 3))
    array = np.from_dlpack(tensor)
    assert np.shares_memory(array, tensor.data) and array.flags.writeable
    np.testing.assert_array_equal(array, tensor.data)


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="NumPy 2.0 cannot mark values as read-only")
@pytest.mark.parametrize("is_leaf", [True, False])
def test_values_that_a_graph_needs_are_read_only(is_leaf):
    leaf = Tensor(np.arange(3.0), requires_grad=True)
    tensor = leaf if is_leaf else leaf * 2
    array = np.from_dlpack(tensor)
    assert np.shares_memory(array, tensor.data) and not array.flags.writeable
    assert tensor.data.flags.writeable  # only the view is read-only


def test_a_tensor_of_foreign_memory_has_gradients():
    array = np.arange(4.0)
    tensor = Tensor.from_dlpack(array, requires_grad=True)
    assert np.shares_memory(tensor.data, array)
    (tensor * tensor).sum().backward()
    np.testing.assert_array_equal(tensor.grad, 2 * array)


def test_an_array_on_a_gpu_that_is_not_in_use_raises():
    class OnGpu:
        def __dlpack_device__(self):
            return 2, 0

    with pytest.raises(ValueError, match="expected an array on the CPU; got an array on a GPU"):
        npx.from_dlpack(OnGpu())
