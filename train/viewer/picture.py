"""Write a picture as PNG or SVG, byte-identical for the same input, with title, caption and alternative text.

Uses matplotlib (the `draw` extra) through its Figure class only, so it needs no display and no global state.
"""

import importlib.util
import io
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from train.errors import UserError, pip_install
from train.files import atomic_write
from train.text.xml import xml_safe

KINDS = (".png", ".svg")
COLORMAP = "viridis"  # perceptually uniform, safe for color-blind readers and in grayscale
DPI = 144
SOURCE_LINE = b"Drawn from "  # beginning of the last line of an alternative text file


def check_picture(path: Path) -> None:
    """Raise UserError before any computation if a picture cannot be drawn or written to `path`."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError(f"draw: matplotlib is not installed; try {pip_install('draw')}")
    check_suffix(path, KINDS)


def check_suffix(path: Path, kinds: Sequence[str]) -> None:
    """Raise UserError unless `path` has the ending of one of these formats."""
    if path.suffix not in kinds:
        names = " or ".join(kinds)
        raise UserError(f"{path}: expected a file name ending in {names}; got '{path.suffix}'; try picture.svg")


def check_alt_text(path: Path) -> None:
    """Raise UserError if writing the alternative text would overwrite a file that this program did not write."""
    text = alt_text_path(path)
    if os.path.lexists(text) and not (
        text.is_file() and text.read_bytes().rpartition(b"\n\n")[2].startswith(SOURCE_LINE)
    ):
        raise UserError(
            f"{text}: expected a file written with an earlier picture; got another file, which would be lost; "
            "try another --out"
        )


def new_figure(width: float, height: float) -> Any:
    """Return a figure of the given size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def disable_math(*texts: Any) -> None:
    """Turn off math parsing: a sentence with two dollar signs is not a formula."""
    for text in texts:
        text.set_parse_math(False)


def set_ticks(axis: Any, places: Sequence[float], labels: Sequence[str], **options: Any) -> None:
    """Set tick positions and labels without math parsing."""
    axis.set_ticks(places, labels, **options)
    disable_math(*axis.get_ticklabels())


def write_picture(figure: Any, path: Path, title: str, alt: str, caption: str, follow_links: bool = True) -> Path:
    """Write the picture and its alternative text (NAME.alt.txt next to it); return the path of the text.

    `title`, `alt` and `caption` (the origin of the drawn data) are also stored in the file's metadata.
    Set `follow_links` if the user named the path (see `atomic_write`).
    """
    import matplotlib
    from matplotlib.text import Text

    title, alt, caption = map(xml_safe, (title, alt, caption))
    for text in figure.findobj(Text):  # a file name may have bytes that are not UTF-8
        text.set_text(xml_safe(text.get_text()))
    svg = path.suffix == ".svg"
    metadata: dict[str, Any] = {"Title": title, "Description": alt, "Source": caption}
    metadata |= {"Date": None, "Creator": None} if svg else {"Software": None}
    with matplotlib.rc_context({"svg.hashsalt": "npx-transformer", "svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # for characters that the font lacks
        drawn = io.BytesIO()
        figure.savefig(drawn, format=path.suffix[1:], dpi=DPI, metadata=metadata)
    with atomic_write(path, follow_links=follow_links) as file:
        file.write(xml_safe(drawn.getvalue().decode()).encode() if svg else drawn.getvalue())
    with atomic_write(alt_text := alt_text_path(path), "t", follow_links) as file:
        file.write(f"{title}\n\n{alt}\n\n{SOURCE_LINE.decode()}{caption}.\n")
    return alt_text


def alt_text_path(path: Path) -> Path:
    """Return the path of a picture's alternative text."""
    return path.with_name(f"{path.stem}.alt.txt")
