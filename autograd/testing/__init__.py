"""Gradient checking as a kit: import it to check your own operation, layer or kernel.

    from autograd.testing import check_layer, check_operation, gradcheck

`problem.py` is what is checked; `slopes.py` measures slopes and knows how well; `gradcheck.py` compares gradients with
them and says what differs; `rules.py`, `modes.py` and `precision.py` have all else that holds, `variants.py` the inputs
derived from given ones, `held.py` what is held fixed between calls, `leaves.py` Tensors that nobody asked about;
`checks.py` puts them together for operations and layers. `kernels.py` compares a kernel's versions, by calls that
`calls.py` derives. `strategies.py` draws inputs (it needs hypothesis, the rest does not). `value.py` holds an operation
to a reference, and knows a blank. `mutate` plants mistakes in a person's own gradients. docs/check-your-layer.md
begins.
"""

from autograd.testing.checks import check_layer, check_operation
from autograd.testing.gradcheck import gradcheck
from autograd.testing.kernels import check_kernel
from autograd.testing.problem import GradientError, Report
from autograd.testing.rules import CheckError, saved_bytes
