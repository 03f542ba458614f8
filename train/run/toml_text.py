"""Reading TOML text within limits, and writing values in TOML syntax."""

import tomllib
from typing import Any

from train.errors import one_line

# Limits of a TOML text: the parser's time is quadratic in the parts of a dotted key and in the number of tables.
MAX_BYTES, MAX_LINE = 1 << 16, 4096


def read_toml(text: str) -> dict[str, Any]:
    """Parse TOML. Raises ValueError for text that is invalid or too large."""
    if len(text) > MAX_BYTES or max(map(len, text.split("\n"))) > MAX_LINE:
        raise ValueError(f"more than {MAX_BYTES:,} bytes, or a line of more than {MAX_LINE:,} characters")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("brackets nested too deeply") from None


def format_value(value: Any, width: int = 60) -> str:
    """Return a value for an error message, on one line and shortened."""
    text = one_line(to_toml(value) if isinstance(value, (str, bool, int, float)) else repr(value))
    return text if len(text) <= width else text[: width - 3] + "..."


def to_toml(value: Any) -> str:
    """Return a string, number or bool in TOML syntax; numbers have the fewest digits that give the same value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if " " <= c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'
    return repr(value)
