"""Valid values, declared once for a configuration key, a command-line option or an environment variable.

Range(int, "[1, 512]").fits(4)                    True
Range(float, "[0, 1)").words()                    "a number of at least 0 and below 1"
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
    """A type with an interval `within`, such as `[0, 1)`, or with `choices`, which may be a registry."""

    kind: type
    within: str = ""
    choices: Iterable[Any] = ()

    def fits(self, value: Any) -> bool:
        """Return whether a value has exactly this type and lies in the range."""
        choices, kind = tuple(self.choices), type(value)
        if kind is not self.kind or (choices and value not in choices):
            return False
        if isinstance(value, str):
            return not re.search(r"[\n\r\0\ud800-\udfff]", value)
        return self.kind is bool or (abs(value) < math.inf and (not self.within or inside(self.within, value)))

    def words(self) -> str:
        """Describe the range for a message: `a number of at least 0 and below 1`."""
        if choices := tuple(self.choices):
            return "one of " + ", ".join(f'"{choice}"' for choice in choices)
        words = TYPES[self.kind]
        if self.within:
            low, high = (side.strip() for side in self.within[1:-1].split(","))
            if self.within[0] == "[" and self.within[-1] == "]":
                return f"{words} from {low} to {high}"
            words += f" of at least {low}" if self.within[0] == "[" else f" above {low}"
            words += "" if high == "inf" else f" and at most {high}" if self.within[-1] == "]" else f" and below {high}"
        return words

    def plain_number(self, value: Any) -> str:
        """Turn "5,000" and "5k" into "5000" and, for a float, "0,5" into "0.5"; return "" for an invalid number."""
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
        is_number = self.kind is float or digits.isdigit()
        return digits if is_number and self.fits(self.kind(digits)) else ""

    def read(self, text: str) -> Any:
        """Parse a value. Raises ValueError (`expected ...; got ...`) if the text is not a value in the range."""
        value: Any = text
        if self.kind in NUMBERS and re.fullmatch(NUMBERS[self.kind], text, re.IGNORECASE):
            try:
                value = self.kind(text)
            except ValueError:
                pass
        if not self.fits(value):
            raise ValueError(f"expected {self.words()}; got {text[:60]!r}")
        return value


def inside(interval: str, value: float) -> bool:
    """Return whether a number lies in an interval written like `[0, 1)`."""
    low, high = map(float, interval[1:-1].split(","))
    above = value >= low if interval[0] == "[" else value > low
    return above and (value <= high if interval[-1] == "]" else value < high)
