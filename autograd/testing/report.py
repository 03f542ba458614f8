"""The results of a check: `Report`, the errors, and the table of rules that they name."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

REJECTIONS = (ValueError, TypeError, LookupError, ArithmeticError)  # raised for inputs outside the domain


class Rule(NamedTuple):
    """A property that every correct function has: what it requires, and the usual cause of a violation."""

    requirement: str
    cause: str = ""


RULES = {
    # The gradient itself
    "gradient": Rule("the analytic gradient equals the numerical derivative"),
    "kink": Rule(
        "at a kink, where the left and right derivatives differ, the gradient lies between them",
        "the formula for the kink itself, such as x == 0 in a ReLU, divides by zero or adds both sides",
    ),
    "tie": Rule(
        "the gradients of tied entries sum to the derivative along the direction that moves these entries together",
        "each of several equal entries receives the full gradient, or none does",
    ),
    "finite gradient": Rule(
        "the gradient is finite wherever the output is, unless the derivative is infinite",
        "0 / 0, inf - inf or an overflow in the vjp; rewrite the formula, or select the branch before dividing",
    ),
    "expected gradient": Rule("the gradient is the one that expected_gradient= declares"),
    "valid gradient": Rule("backward succeeds, and the vjp returns a gradient of the shape and dtype of each input"),
    # The value
    "reference": Rule("the results equal the reference's"),
    "domain": Rule("the output is finite everywhere in the declared domain"),
    "determinism": Rule("the same input gives the same output", "random numbers are drawn without a fixed key"),
    "not implemented": Rule("the operation returns its output and a vjp"),
    # Arguments
    "no mutation": Rule(
        "inputs, parameters, outputs and incoming gradients are never modified",
        "an in-place operator such as += or out= is applied to an argument; copy it first",
    ),
    "input layout": Rule(
        "the memory layout of the inputs does not matter",
        "the code reads raw memory, reshapes in memory order, or assumes C-contiguous arrays",
    ),
    "incoming gradient layout": Rule(
        "the memory layout of the incoming gradient does not matter",
        "the vjp reads raw memory, or writes to an array that may be a broadcast view",
    ),
    "linearity": Rule(
        "the gradient is a linear function of the incoming gradient",
        "the vjp ignores, clips, squares or normalizes the incoming gradient, adds a constant, or loses precision; "
        "if it is intended, declare it with expected_gradient=",
    ),
    "aliased inputs": Rule(
        "one array passed as several inputs gives the same results as copies of it",
        "the code compares its inputs by identity",
    ),
    "independent inputs": Rule(
        "the gradient of an input does not depend on which other inputs require gradients",
        "the vjp skips work that another input needs",
    ),
    "accumulation": Rule(
        "gradients are added to existing ones",
        "the vjp overwrites `accumulate_into`, adds to it twice, or returns an array that it has already added to",
    ),
    "block size": Rule(
        "the results do not depend on the size of the blocks in which rows are computed",
        "the last block is skipped, or a block reads values from another one",
    ),
    "thread count": Rule(
        "the results are bitwise equal for any number of threads",
        "threads share a scratch buffer, or add to one sum in varying order",
    ),
    # State
    "independent calls": Rule(
        "the results do not depend on earlier or interleaved calls",
        "a buffer, cache or attribute is shared between calls (save such values in the vjp's closure), "
        "or an array from np.empty is not filled",
    ),
    "fresh values": Rule(
        "a call uses the current values of its arrays, even after an in-place update",
        "a result is cached by array identity or shape",
    ),
    "layer mode": Rule(
        "the results do not depend on the modes that the layer is in before or after the call",
        "the vjp reads the mode during backward, or values cached for one mode are used in the other",
    ),
    "single backward": Rule("a second backward pass through the same graph raises an error"),
    "registered parameters": Rule(
        "every Tensor that requires a gradient is an input or one of named_parameters()",
        "the Tensor is not a Parameter, or is stored where the module does not look for parameters",
    ),
    # Precision and memory
    "dtype": Rule("the output has the dtype of the inputs, unless another dtype is declared"),
    "float64 precision": Rule(
        "float64 inputs are computed in float64 throughout", "an intermediate result is cast to float32"
    ),
    "float32 accuracy": Rule(
        "float32 results are as close to float64 results as float32 rounding allows",
        "an intermediate result is cast to float16, or large terms cancel",
    ),
    "float16 accuracy": Rule(
        "float16 inputs, where accepted, give results with a few correct digits, without overflow",
        "a constant of another dtype, or a square or an exponential that exceeds 65504",
    ),
    "bfloat16 accuracy": Rule(
        "bfloat16 inputs, where accepted, give results with one or two correct digits",
        "many terms are summed in bfloat16, or large terms cancel",
    ),
    "saved memory": Rule(
        "at most max_saved_bytes are saved for the backward pass",
        "the vjp's closure holds an array that it does not need, or could recompute",
    ),
}


class GradientError(AssertionError):
    """An analytic gradient differs from the numerical derivative.

    Attributes:
        rule: a key of `RULES`.
        level: see `Report.level`.
        index: the position of the entry with the largest error in its input; empty if unknown.
    """

    rule = ""
    level = "wrong"
    index: tuple[int, ...] = ()


class CheckError(AssertionError):
    """A function breaks a rule other than those about the value of its gradient.

    Attributes:
        rule: a key of `RULES`.
        level: see `Report.level`.
    """

    rule = ""
    level = "wrong"


class NonFiniteError(ValueError):
    """A function returned a non-finite value: the inputs are outside its domain."""


class Rejection(ValueError):
    """A function raised an exception other than `REJECTIONS`, which is the `__cause__`: an assertion, for example."""

    def __init__(self, error: Exception) -> None:
        lines = str(error).strip().splitlines() or ["no message"]
        super().__init__(f"{type(error).__name__}: {lines[0]}")


@contextmanager
def rejections_converted() -> Iterator[None]:
    """Raise a `Rejection` for an exception of the user's code that is not one of `REJECTIONS`."""
    try:
        yield
    except (CheckError, GradientError, *REJECTIONS):
        raise
    except Exception as error:
        raise Rejection(error) from error


@contextmanager
def rejections_unwrapped() -> Iterator[None]:
    """Raise the exception that the user's code raised in place of a `Rejection`."""
    try:
        yield
        return
    except Rejection as error:
        cause = error.__cause__
    assert cause is not None
    raise cause


def describe_error(error: Exception) -> str:
    """Return the class and the message of an exception, for messages."""
    return str(error) if isinstance(error, Rejection) else f"{type(error).__name__}: {error}"


def explain(message: str, rule: str, reproduce: str = "", cause: str = "") -> str:
    """Return a message with the broken rule, its requirement, the likely cause, and a line that repeats the failure."""
    lines = [message, f"rule: {rule}", f"requires: {RULES[rule].requirement}"]
    cause = cause or RULES[rule].cause
    if cause:
        lines.append(f"likely cause: {cause}")
    if reproduce:
        lines.append(f"reproduce: {reproduce}")
    return "\n".join(lines)


@dataclass
class Report:
    """Statistics of a check that passed.

    Attributes:
        compared: the number of analytic derivatives compared with numerical ones.
        largest_difference: the largest relative difference between the two.
        kinks: the entries at which the left and right derivatives differ, so any value between them is accepted.
        conventions: the entries whose gradient is one of several defensible values, although it differs from the
            numerical derivative, each with the reason.
        inconclusive: the entries at which no step size gave an accurate numerical derivative, each with the reason.
        notes: random numbers and buffers that were held fixed, and Tensors whose gradients were not compared.
        variants: the number of derived inputs at which gradients were compared.
        saved_bytes: bytes that an operation saves for its backward pass beyond inputs and output; only set by
            `check_operation`.
    """

    compared: int = 0
    largest_difference: float = 0.0
    kinks: list[str] = field(default_factory=list)
    conventions: list[str] = field(default_factory=list)
    inconclusive: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    variants: int = 0
    saved_bytes: int = 0

    @property
    def level(self) -> str:
        """`convention` if the gradient takes one of several defensible values somewhere, else `right`.

        The level of a GradientError or CheckError is `wrong`.
        """
        return "convention" if self.kinks or self.conventions else "right"

    def __str__(self) -> str:
        """Return a summary of a few lines: the number of entries of each kind, with one entry as an example."""
        lines = [
            f"{self.level}: {self.compared} derivatives compared, at {self.variants} derived inputs; "
            f"largest relative difference {self.largest_difference:.2g}"
        ]
        for name in ("kinks", "conventions", "inconclusive"):
            if entries := getattr(self, name):
                lines.append(f"{name}: {len(entries)}, such as {entries[0]}")
        return "\n".join([*lines, *self.notes])
