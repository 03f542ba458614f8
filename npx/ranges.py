"""Valid values, declared once for a configuration key, a command-line option or an environment variable.

Range(int, "[1, 512]").fits(4)                    True
Range(float, "[0, 1)").describe()                 "a number of at least 0 and below 1"
Range(str, choices=("paper", "length"))           one of these strings
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

TYPES: dict[type, str] = {
    int: "a whole number", float: "a number", bool: "true or false", str: "UTF-8 text on one line",
}  # fmt: skip
NUMBERS = {int: r"[+-]?[0-9]{1,40}", float: r"[+-]?[0-9.]{1,40}(e[+-]?[0-9]{1,4})?"}


@dataclass(frozen=True)
class Range:
    """A type with an `interval`, such as `[0, 1)`, or with `choices`, which may be a registry."""

    kind: type
    interval: str = ""
    choices: Iterable[Any] = ()

    def fits(self, value: Any) -> bool:
        """Return whether a value has exactly this type and lies in the range."""
        choices = tuple(self.choices)
        value_type = type(value)
        if value_type is not self.kind or (choices and value not in choices):
            return False
        if isinstance(value, str):
            return not re.search(r"[\n\r\0\ud800-\udfff]", value)
        return self.kind is bool or (abs(value) < math.inf and (not self.interval or is_inside(self.interval, value)))

    def describe(self) -> str:
        """Return a description of the range for a message: `a number of at least 0 and below 1`."""
        if choices := tuple(self.choices):
            return "one of " + ", ".join(f'"{choice}"' for choice in choices)
        text = TYPES[self.kind]
        if self.interval:
            low, high = (side.strip() for side in self.interval[1:-1].split(","))
            includes_low, includes_high = self.interval[0] == "[", self.interval[-1] == "]"
            if includes_low and includes_high:
                return f"{text} from {low} to {high}"
            text += f" of at least {low}" if includes_low else f" above {low}"
            if high != "inf":
                text += f" and at most {high}" if includes_high else f" and below {high}"
        return text

    def normalize_number(self, value: Any) -> str:
        """Return the number that a user may have meant, as plain digits, or "" if no such number is in the range.

        "5,000" and "5k" become "5000" and, for a float, "0,5" becomes "0.5".
        """
        if not isinstance(value, str) or self.kind not in NUMBERS:
            return ""
        if re.fullmatch(r"[1-9][0-9]{0,2}(,[0-9]{3}){1,9}(\.[0-9]+)?", value):
            digits = value.replace(",", "")
        elif re.fullmatch(r"[0-9]{1,30},[0-9]{1,30}", value):
            digits = value.replace(",", ".")
        elif re.fullmatch(r"[1-9][0-9]{0,8}[kKmM]", value):
            digits = value[:-1] + "000" * (1 + (value[-1] in "mM"))
        elif re.fullmatch(r"-?(0|[1-9][0-9]{0,29})(\.[0-9]{1,30})?(e-?[0-9]{1,3})?", value):
            digits = value
        else:
            return ""
        has_right_type = self.kind is float or digits.isdigit()
        return digits if has_right_type and self.fits(self.kind(digits)) else ""

    def parse(self, text: str) -> Any:
        """Parse a value. Raises ValueError (`expected ...; got ...`) if the text is not a value in the range."""
        value: Any = text
        if self.kind in NUMBERS and re.fullmatch(NUMBERS[self.kind], text, re.IGNORECASE):
            try:
                value = self.kind(text)
            except ValueError:
                pass
        if not self.fits(value):
            raise ValueError(f"expected {self.describe()}; got {text[:60]!r}")
        return value


def is_inside(interval: str, value: float) -> bool:
    """Return whether a number lies in an interval written like `[0, 1)`."""
    low, high = map(float, interval[1:-1].split(","))
    above = value >= low if interval[0] == "[" else value > low
    return above and (value <= high if interval[-1] == "]" else value < high)
