"""Arrays on NumPy or CuPy: devices, random numbers and fused kernels.

Only this package imports CuPy, and `autograd` and `models` do not import NumPy either: they use the functions exported
here. Importing `npx` changes no process settings; call `npx.configure_process()` to tune the process for speed.

The array functions below are NumPy's own. For a CuPy array they call CuPy through NumPy's dispatch protocols
(`__array_ufunc__`, `__array_function__`), so the other packages hardly ever need to know an array's library.
Creation functions (`zeros`, `arange`, `asarray`, ...) create arrays on the current device; those of `npx.host` create
arrays on the host.
"""

from numpy import (
    absolute, argmax, argsort, array_equal, bool_, broadcast_shapes, broadcast_to, ceil, clip, concatenate, copyto,
    cos, cumsum, divide, exp, expand_dims, float32, float64, full_like, inf, int32, int64, isfinite, log, log1p,
    logical_and, logical_not, logical_or, matmul, maximum, minimum, moveaxis, multiply, nan, ndarray, nonzero,
    ones_like, prod, repeat, result_type, reshape, sign, sin, sort, sqrt, stack, subtract, swapaxes, take,
    take_along_axis, tanh, tile, transpose, tril, unique, unravel_index, where, zeros_like,
)  # fmt: skip
from numpy import all as all, any as any, max as max, min as min

from npx import random
from npx import distributed
from npx.backend import (
    NO_ACCUMULATORS, Array, Accumulators, add_at, arange, array_module, asarray, ceil_div, check_floating, device,
    empty, free_memory, from_dlpack, from_host, full, host, memory_use, ones, read_only, synchronize, to_host,
    use_device, zeros,
)  # fmt: skip
from npx.kernels.adam import AdamCoefficients, adam, adam_coefficients
from npx.kernels.attention import attention, attention_grad, attention_weights
from npx.kernels.cross_entropy import SMOOTHING_CLASSES, LabelSmoothing
from npx.kernels.cross_entropy import cross_entropy, cross_entropy_grad, linear_cross_entropy, linear_cross_entropy_grad
from npx.kernels.dropout import DropoutSpec, dropout, dropout_grad
from npx.kernels.dropout_residual_norm import dropout_residual_norm, dropout_residual_norm_grad
from npx.kernels.embedding import embedding, embedding_grad
from npx.kernels.layer_norm import layer_norm, layer_norm_grad
from npx.kernels.linear import linear, linear_grad
from npx.kernels.recurrent import gru, gru_grad, lstm, lstm_grad
from npx.kernels.softmax import softmax, softmax_grad
from npx.kernels.top_k import log_softmax_top_k
from npx.kernels.packing import Packing, pad_packed, pack_padded
from npx.precision import PRECISIONS, Precision, precision_named, use_precision, accumulation_dtype, mean, sum as sum
from npx.random import Key, keyed, next_key
from npx.registry import Registry
from npx.dispatch import (
    KERNELS, GradientKernel, Kernel, KernelMismatch, SavedValues, kernel, kernel_mode, rematerialize_above,
    should_rematerialize,
)  # fmt: skip
from npx.cpu.row_blocks import elementwise, small_blocks
from npx.kernels.attention_spec import AttentionSpec, mask_bias
from npx.settings import check_settings
from npx.cpu.tune import configure_process, is_configured

check_settings()
