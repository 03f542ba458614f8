"""A gradient checker for your own operations, layers and kernels.

    from autograd.testing import check_kernel, check_layer, check_operation, gradcheck

Modules import only from modules above them in this list:

    report.py           the result of a check, its errors, and the table of rules
    progress.py         the progress line of a long check
    problem.py          a function with its inputs, and ways to evaluate it; baseline.py: the results to compare with
    arguments.py        the arguments of a call as a flat list
    reproduction.py     the line of Python that repeats a failing check
    variants.py         inputs derived from the given ones; undeclared.py: those that need not be accepted
    numerical.py        numerical derivatives with an error bound
    conventions.py      points at which several gradients are defensible
    diagnosis.py        the text of a report on a wrong gradient
    directions.py       derivatives along directions, analytic and numerical
    gradcheck.py        analytic gradients compared with numerical derivatives, entry by entry
    declared_gradient.py gradients that intentionally differ from the derivative: expected_gradient=
    rules.py            the other rules; modes.py: rules for layers with modes; precision.py: rules for precision
    reference.py        values compared with a reference implementation
    implicit_state.py   random numbers and buffers, held fixed between calls
    stray_tensors.py    Tensors that require gradients but are neither inputs nor parameters
    shrinking.py        the smallest inputs that fail
    problem_check.py    all checks of one function, at the given inputs and at derived ones
    checks.py           check_operation and check_layer
    call_variants.py    calls derived from one call to a kernel; kernels.py: check_kernel
    adapters/           from_pair, from_torch, from_jax, from_cupy: functions of other frameworks as operations
    strategies.py       hypothesis strategies for inputs; the only module that needs hypothesis

mutate.py and mutation/ measure the quality of a test suite; check_command.py is `python -m autograd.testing check`.
docs/check-your-layer.md is the introduction.

How the classes work together in `check_operation`, in the order of a check:

1. `Arguments` flattens the arguments of the call, so that arrays in containers and options are checked as well.
2. A `Problem` combines the function with the flat arguments. It computes outputs and gradients, and creates all errors.
3. If repeated calls give different outputs, `hold_state` makes the Problem restore its random generators and buffers
   before each call.
4. `ProblemCheck.check_given_inputs` compares the gradients of the Problem: it creates a `GradientCheck`, which moves
   the inputs along directions (`DirectionalCheck`) and gets a `Verdict` on each analytic derivative, such as right,
   wrong or kink.
5. The output and the gradients, which are now known to be right, become the `Baseline` of the Problem.
6. Each rule evaluates the Problem in another way and passes the results to `Baseline.compare`.
7. `ProblemCheck.check_derived_inputs` repeats steps 4 and 6, with fewer rules, for Problems with derived inputs.
8. Every comparison records its result in the `Report`, which the check returns. The first broken rule ends the check
   with a GradientError or CheckError.

`check_layer` does the same in each mode, with the layer's parameters as further arrays of the Problem.
"""

from autograd.testing.adapters.cupy import from_cupy
from autograd.testing.adapters.discover import check_gradient
from autograd.testing.adapters.jax import from_jax
from autograd.testing.adapters.pair import from_pair
from autograd.testing.adapters.torch import from_torch
from autograd.testing.checks import check_layer, check_operation
from autograd.testing.gradcheck import gradcheck
from autograd.testing.kernels import check_kernel
from autograd.testing.report import CheckError, GradientError, Report
from autograd.testing.rules import saved_bytes
