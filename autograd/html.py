"""Arrays as HTML tables, for notebooks."""

from html import escape
from typing import Any

import npx
from npx import Array

MAX_CELLS = 200  # larger arrays and arrays with more than two axes are written as text


def tables(arrays: dict[str, Array]) -> str:
    """Return HTML that shows arrays side by side. The keys of `arrays` are the captions."""
    return f'<div style="display: flex; gap: 2em">{"".join(table(*item) for item in arrays.items())}</div>'


def table(caption: str, x: Array) -> str:
    """Return an array as an HTML table with a caption."""
    x = npx.to_host(x)
    if x.ndim > 2 or x.size > MAX_CELLS:
        return f"<pre>{escape(caption)}\n{escape(str(x))}</pre>"
    rows = x.reshape(-1, x.shape[-1] if x.ndim and x.shape[-1] else 1).tolist()
    cells = ("".join(f"<td>{format_number(value)}</td>" for value in row) for row in rows)
    return f"<table><caption>{escape(caption)}</caption>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def format_number(x: Any) -> str:
    """Return a number with four digits, or an integer with all its digits."""
    return str(x) if isinstance(x, int) else f"{x:.4g}"
