"""A picture as a file: PNG or SVG, the same bytes for the same input, with its title, source and alternative text.

matplotlib draws (the extra `draw`), through its Figure alone: no screen, no state outside of the picture.
"""

import importlib.util
import io
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from train.errors import UserError
from train.files import whole, write_text
from train.text.xml import xml_safe

KINDS = (".png", ".svg")
COLOURS = "viridis"  # even in lightness, also for eyes that see fewer colours, and printed in grey
DPI = 144
DRAWN = b"Drawn from "  # begins the last line of the words beside a picture


def check(path: Path) -> None:
    """UserError where a picture cannot be drawn, or not be written to `path`, before anything is computed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError('draw: expected the package matplotlib; got none; try pip install "npx-transformer[draw]"')
    check_place(path, KINDS)


def check_place(path: Path, kinds: Sequence[str]) -> None:
    """UserError where a picture of one of these kinds cannot be written to `path`."""
    if path.suffix not in kinds:
        names = " or ".join(kinds)
        raise UserError(f"{path}: expected a name that ends in {names}; got '{path.suffix}'; try picture.svg")
    if path.is_dir() or not path.parent.is_dir():
        got = "a folder" if path.is_dir() else f"no folder {path.parent}"
        raise UserError(f"{path}: expected a file to write; got {got}; try another path")


def check_words(path: Path) -> None:
    """UserError where what stands beside a picture, in the place of its words, is somebody's own."""
    text = beside(path)
    if os.path.lexists(text) and not (text.is_file() and text.read_bytes().rpartition(b"\n\n")[2].startswith(DRAWN)):
        raise UserError(f"{text}: expected the words of a picture, to replace; got another's; try another --out")


def new(width: float, height: float) -> Any:
    """A figure of so many inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def plain(*texts: Any) -> None:
    """Shows these texts of matplotlib as they are: a sentence with two dollar signs is no formula."""
    for text in texts:
        text.set_parse_math(False)


def ticks(axis: Any, places: Sequence[float], labels: Sequence[str], **how: Any) -> None:
    """Labels at places of an axis, as they are."""
    axis.set_ticks(places, labels, **how)
    plain(*axis.get_ticklabels())


def write(figure: Any, path: Path, title: str, alt: str, source: str) -> Path:
    """Writes the picture and, beside it, its alternative text as NAME.alt.txt; returns the path of that.

    `title` says what is seen and `source` what it was drawn from; both are in the file's metadata, `alt` too.
    """
    import matplotlib

    svg = path.suffix == ".svg"
    about: dict[str, Any] = {"Title": title, "Description": alt, "Source": source}
    about |= {"Date": None, "Creator": None} if svg else {"Software": None}
    with matplotlib.rc_context({"svg.hashsalt": "npx-transformer", "svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # of a script that the font does not have
        drawn = io.BytesIO()
        figure.savefig(drawn, format=path.suffix[1:], dpi=DPI, metadata=about)
    with whole(path) as file:
        file.write(xml_safe(drawn.getvalue().decode()).encode() if svg else drawn.getvalue())
    write_text(text := beside(path), f"{title}\n\n{alt}\n\n{DRAWN.decode()}{source}.\n")
    return text


def beside(path: Path) -> Path:
    """Where the words of a picture stand."""
    return path.with_name(f"{path.stem}.alt.txt")
