"""Plot the curves of one or more runs from metrics.jsonl: loss, scores, learning rate, gradient norm, throughput."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from train.viewer.picture import disable_math, new_figure, write_picture


class Panel(NamedTuple):
    """A plot of one quantity against the updates.

    Attributes:
        title: name of the quantity, with its unit.
        unit: label of the y axis.
        lines: a pair (kind, key) for each line, which shows the values of `key` in the entries of this kind.
        is_logarithmic: whether the y axis is logarithmic.
    """

    title: str
    unit: str
    lines: Sequence[tuple[str, str]]
    is_logarithmic: bool = False


PANELS = {
    "loss": Panel(
        "loss (nats per token; training: with the run's label smoothing)",
        "nats per token",
        [("train", "loss"), ("valid", "loss")],
    ),
    "perplexity": Panel("validation perplexity", "perplexity", [("valid", "perplexity")], True),
    "bleu": Panel("validation BLEU (greedy)", "BLEU", [("valid", "bleu")]),
    "chrf": Panel("validation chrF (greedy)", "chrF", [("valid", "chrf")]),
    "f1": Panel("validation F1 (%)", "F1 (%)", [("valid", "f1")]),
    "accuracy": Panel("validation accuracy (%)", "accuracy (%)", [("valid", "accuracy")]),
    "macro_f1": Panel("validation macro F1 (%)", "macro F1 (%)", [("valid", "macro_f1")]),
    "lr": Panel("learning rate", "learning rate", [("train", "lr")]),
    "gradient_norm": Panel("gradient norm", "L2 norm", [("train", "gradient_norm")], True),
    "tokens_per_second": Panel(
        "tokens per second, source + target",
        "tokens per second",
        [("train", "tokens_per_second")],
    ),
}
MAX_PLOTTED = 1e150  # matplotlib's ticks overflow for larger values; the limit also excludes NaN and infinity
HUES = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
DASHES = {"train": "-", "valid": "--"}

# Maps a panel, then "train" or "valid", to (update, value) pairs.
Series = dict[str, dict[str, list[tuple[int, float]]]]


def runs_by_name(runs: Iterable[Path]) -> dict[str, Path]:
    """Return runs by folder name or, if two have the same name, by their path below the folder that contains all."""
    paths = list(dict.fromkeys(Path(os.path.abspath(run)) for run in runs))
    if len(names := {path.name: path for path in paths}) == len(paths):
        return names
    parent = os.path.commonpath([path.parent for path in paths])
    return {str(path.relative_to(parent)): path for path in paths}


def series(metrics: Sequence[Mapping[str, Any]]) -> Series:
    """Return the points to plot from the entries of metrics.jsonl; empty panels are omitted."""
    panels: Series = {}
    for name, panel in PANELS.items():
        for kind, key in panel.lines:
            points = [
                (entry["step"], float(entry[key]))
                for entry in metrics
                if entry["kind"] == kind and isinstance(entry.get(key), (int, float)) and abs(entry[key]) < MAX_PLOTTED
            ]
            if points:
                panels.setdefault(name, {})[kind] = points
    return panels


def draw_curves(runs: Mapping[str, Series], path: Path, caption: str) -> Path:
    """Plot the metrics of the runs against the updates, with one panel for each metric and one color for each run."""
    from matplotlib.ticker import LogLocator

    panels = [name for name in PANELS if any(name in curves for curves in runs.values())]
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    figure = new_figure(4.2 * across + 0.2, 2.9 * down + 0.9)
    figure.set_layout_engine("constrained")
    for n, name in enumerate(panels):
        panel = PANELS[name]
        axis = figure.add_subplot(down, across, n + 1)
        axis.set_xlabel("updates", fontsize=8)
        axis.set_ylabel(panel.unit, fontsize=8)
        axis.set_title(panel.title, fontsize=9, loc="left")
        if panel.is_logarithmic:
            axis.set_yscale("log")
            axis.set_ylabel(f"{panel.unit} (log scale)", fontsize=8)
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.minorticks_off()
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.tick_params(which="both", labelsize=7.5)
        axis.grid(linewidth=0.3)
        lines: dict[str, Any] = {}  # by label; matplotlib omits a label= that begins with "_"
        for hue, (run, curves) in zip(HUES * len(runs), runs.items(), strict=False):
            for kind, points in curves.get(name, {}).items():
                mark = "." if len(points) < (60 if kind == "valid" else 2) else ""
                label = f"{run}, {'training' if kind == 'train' else 'validation'}"
                (line,) = axis.plot(*zip(*points, strict=True), DASHES[kind], marker=mark, color=hue, linewidth=1)
                lines[label] = line
        points = [p for curves in runs.values() for line in curves.get(name, {}).values() for p in line]
        if len({x for x, _ in points}) == 1:  # matplotlib's default limits and ticks would be fractions of an update
            axis.set_xticks([points[0][0]])
        if len({y for _, y in points}) == 1:
            axis.set_yticks([points[0][1]], [f"{points[0][1]:.4g}"])
            axis.minorticks_off()
        if n == 0:
            disable_math(*axis.legend(lines.values(), lines.keys(), fontsize=7).get_texts())
    title = f"Curves of {', '.join(runs)}"
    disable_math(figure.suptitle(title, fontsize=11, x=0.01, ha="left"))
    alt = [f"{title}, against updates."]
    for run, curves in runs.items():
        for name, kinds in curves.items():
            for kind, points in kinds.items():
                low_step, low = min(points, key=lambda p: p[1])
                high_step, high = max(points, key=lambda p: p[1])
                alt.append(
                    f"{run}, {PANELS[name].title}, {kind}: first {points[0][1]:.4g}, last {points[-1][1]:.4g} at "
                    f"update {points[-1][0]:,}; minimum {low:.4g} at {low_step:,}, maximum {high:.4g} at {high_step:,}."
                )
    return write_picture(figure, path, title, "\n".join(alt), caption)
