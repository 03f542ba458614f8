"""The page, picture and JSON of Table 1: measurements of layers next to the paper's complexities."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from train.experiments.folder import write_table
from train.experiments.plot import import_pyplot

Results = Mapping[str, Mapping[str, Any]]
COLORS = "C0", "C1", "C2", "C3", "C4"


def fitted_exponents(cells: list[dict[str, Any]], name: str) -> tuple[float, float]:
    """Return a and b of the least-squares fit cell[name] ~ n^a d^b over the larger half of the sizes."""
    lengths, widths = (sorted({cell[name] for cell in cells}) for name in ("n", "d"))
    chosen = [c for c in cells if c["n"] >= lengths[len(lengths) // 2] and c["d"] >= widths[len(widths) // 2]]
    rows = [[math.log(c["n"]), math.log(c["d"]), 1.0] for c in chosen]
    a, b, _ = np.linalg.lstsq(np.array(rows), np.log([c[name] for c in chosen]), rcond=None)[0]
    return float(a), float(b)


def write_page(out: Path, scale: str, kinds: Mapping[str, Any], results: Results) -> dict[str, Any]:
    """Write table1.json, table1.md and, if matplotlib is installed, table1.png; return the table."""
    table: dict[str, Any] = {"scale": scale, "kinds": {}}
    for name, result in results.items():
        kind = kinds[name]
        cells = [{**cell, "seconds": cell["forward"] + cell["backward"]} for cell in result["cells"]]
        fits = {quantity: fitted_exponents(cells, quantity) for quantity in ("seconds", "flops", "peak_bytes")}
        paper = {"complexity": kind.complexity, "exponents": kind.exponents, "sequential": kind.sequential}
        table["kinds"][name] = {**result, "cells": cells, "fits": fits, "paper": {**paper, "path": kind.path}}
    has_picture = bool(table["kinds"]) and draw(table, out / "table1.png")
    write_table(out, "table1", table, markdown(table, has_picture))
    return table


def powers(exponents: Any) -> str:
    """Format the exponents a and b of n^a d^b: `n^1.02 d^1.95`."""
    return f"n^{exponents[0]:.2f} d^{exponents[1]:.2f}"


def markdown(table: Mapping[str, Any], has_picture: bool) -> Iterator[str]:
    """Yield the lines of table1.md."""
    kinds = table["kinds"]
    yield from ("# Table 1, measured", "")
    yield from (
        "A layer processes one sequence of n positions of width d, forward and backward, on this machine. Exponents",
        "are least-squares fits over the larger half of the sizes. FLOPs count only matmuls: the backward pass counts",
        "as two forward passes, and recomputation is not counted. Memory is the peak of all arrays of a pass.",
        "",
        "| layer | paper | FLOPs | time | memory | n = 8, 16, 32: graph depth | paper: sequential |",
        "|---|---|---|---|---|---|---|",
    )
    for name, kind in kinds.items():
        fits = kind["fits"]
        depth = ", ".join(str(kind["depth"][n]) for n in ("8", "16", "32"))
        cells = [name, kind["paper"]["complexity"], *(powers(fits[q]) for q in ("flops", "seconds", "peak_bytes"))]
        yield "| " + " | ".join([*cells, depth, kind["paper"]["sequential"]]) + " |"
    for title, name, text in (
        ("Steps that a signal must pass: layers, or positions of a recurrence", "path", str),
        ("Gradient of an output with respect to an input, one layer, by distance", "gradients", lambda x: f"{x:.2g}"),
        (
            "Updates until one layer copies the token at a distance",
            "copying",
            lambda x: "never" if x is None else str(x),
        ),
    ):
        distances = list(next(iter(kinds.values()))[name]) if kinds else []
        yield from ("", f"## {title}", "", "| layer | " + " | ".join(distances) + " | paper: path length |")
        yield "|---|" + "---|" * (len(distances) + 1)
        for kind_name, kind in kinds.items():
            row = [text(kind[name][distance]) for distance in distances]
            yield "| " + " | ".join([kind_name, *row, kind["paper"]["path"]]) + " |"
    yield from ("", "## Seconds, forward and backward", "")
    for name, kind in kinds.items():
        lengths, widths = (sorted({cell[x] for cell in kind["cells"]}) for x in ("n", "d"))
        seconds = {(cell["n"], cell["d"]): cell["seconds"] for cell in kind["cells"]}
        yield from (f"| {name} | " + " | ".join(f"d = {d}" for d in widths) + " |", "|---|" + "---|" * len(widths))
        for n in lengths:
            yield f"| n = {n} | " + " | ".join(f"{seconds[n, d]:.4g}" for d in widths) + " |"
        yield ""
    if has_picture:
        yield "![time, gradient and copying](table1.png)"


def draw(table: Mapping[str, Any], path: Path) -> bool:
    """Draw time against n and d, and gradient and copying against distance; return False if matplotlib is missing."""
    plt = import_pyplot(path.name)
    if plt is None:
        return False
    figure, axes = plt.subplots(2, 2, figsize=(10, 7.5), layout="constrained")
    for color, (name, kind) in zip(COLORS, table["kinds"].items(), strict=False):
        lengths, widths = (sorted({cell[x] for cell in kind["cells"]}) for x in ("n", "d"))
        middle = {"n": lengths[len(lengths) // 2], "d": widths[len(widths) // 2]}
        for axis, x, fixed in ((axes[0, 0], "n", "d"), (axes[0, 1], "d", "n")):
            points = [(cell[x], cell["seconds"]) for cell in kind["cells"] if cell[fixed] == middle[fixed]]
            axis.loglog(*zip(*points, strict=True), "o-", color=color, label=name)
            axis.set(xlabel=f"{x} ({fixed} = {middle[fixed]})", ylabel="seconds, forward and backward")
        gradients = [(int(distance), norm) for distance, norm in kind["gradients"].items() if norm > 0]
        copying = [(int(distance), steps) for distance, steps in kind["copying"].items() if steps is not None]
        for axis, points, label in (
            (axes[1, 0], gradients, "norm of the gradient, one layer"),
            (axes[1, 1], copying, "updates until the token is copied"),
        ):
            if points:
                axis.loglog(*zip(*points, strict=True), "o-", color=color)
            axis.set(xlabel="distance", ylabel=label)
    for axis in axes.flat:
        axis.set_xscale("log", base=2)
    axes[0, 0].legend(fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True
