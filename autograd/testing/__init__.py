"""Gradient checking as a kit: import it to check your own operation, layer or kernel.

    from autograd.testing import check_layer, check_operation, gradcheck

`gradcheck.py` compares gradients with central differences and says what differs; `checks.py` adds everything else a
correct operation, layer or kernel keeps; `strategies.py` draws the inputs that find what is wrong (it needs hypothesis,
the rest does not). docs/check-your-layer.md has the ten lines to begin with.
"""

from autograd.testing.checks import CheckError, check_layer, check_operation, saved_bytes
from autograd.testing.gradcheck import GradientError, Report, gradcheck
from autograd.testing.kernels import check_kernel
