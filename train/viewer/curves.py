"""Curves of one or several runs: what metrics.jsonl has of loss, scores, rate, gradient norm and speed."""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from train.viewer.picture import new, plain, write

# name -> (what it is with its unit, the entries of metrics.jsonl and their keys, whether its axis is logarithmic)
PANELS: dict[str, tuple[str, Sequence[tuple[str, str]], bool]] = {
    "loss": ("loss (nats a token; training: smoothed)", [("train", "loss"), ("valid", "loss")], False),
    "perplexity": ("perplexity, validation", [("valid", "perplexity")], True),
    "bleu": ("BLEU, validation, greedy", [("valid", "bleu")], False),
    "f1": ("F1, validation (%)", [("valid", "f1")], False),
    "lr": ("learning rate", [("train", "lr")], False),
    "gradient_norm": ("norm of the gradient", [("train", "gradient_norm")], True),
    "tokens_per_second": ("tokens a second, both sides", [("train", "tokens_per_second")], False),
}
HUES = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
DASHES = {"train": "-", "valid": "--"}

Series = dict[str, dict[str, list[tuple[int, float]]]]  # panel -> "train" or "valid" -> (update, value)


def named(runs: Iterable[Path]) -> dict[str, Path]:
    """Runs by their folders' names; one whose name is taken by its path."""
    found: dict[str, Path] = {}
    for run in map(Path.absolute, runs):
        if run not in found.values():
            found[run.name if run.name not in found else str(run)] = run
    return found


def series(metrics: Sequence[Mapping[str, Any]]) -> Series:
    """What there is to draw of the entries of a metrics.jsonl; panels without anything are left out."""
    found: Series = {}
    for name, (_, lines, _) in PANELS.items():
        for kind, key in lines:
            points = [
                (entry["step"], float(entry[key]))
                for entry in metrics
                if entry["kind"] == kind and isinstance(entry.get(key), (int, float)) and isfinite(entry[key])
            ]
            if points:
                found.setdefault(name, {})[kind] = points
    return found


def draw_curves(runs: Mapping[str, Series], path: Path, source: str) -> Path:
    """A panel for each of PANELS that a run has something of, over updates; a colour each run."""
    panels = [name for name in PANELS if any(name in found for found in runs.values())]
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    figure = new(4.2 * across + 0.2, 2.9 * down + 0.9)
    figure.set_layout_engine("constrained")
    for n, name in enumerate(panels):
        about, _, logarithmic = PANELS[name]
        axis = figure.add_subplot(down, across, n + 1)
        axis.set_xlabel("updates", fontsize=8)
        axis.set_title(about, fontsize=9, loc="left")
        if logarithmic:
            axis.set_yscale("log")
            for which in ("major", "minor"):
                getattr(axis.yaxis, f"set_{which}_formatter")("{x:g}")
        axis.tick_params(which="both", labelsize=7.5)
        axis.grid(linewidth=0.3)
        for hue, (run, found) in zip(HUES * len(runs), runs.items(), strict=False):
            for kind, points in found.get(name, {}).items():
                mark = "." if len(points) < 60 and kind == "valid" else ""
                label = f"{run}, {'training' if kind == 'train' else 'validation'}"
                axis.plot(*zip(*points, strict=True), DASHES[kind], marker=mark, color=hue, linewidth=1, label=label)
        if n == 0:
            plain(*axis.legend(fontsize=7).get_texts())
    title = f"Curves of {', '.join(runs)}"
    plain(figure.suptitle(title, fontsize=11, x=0.01, ha="left"))
    alt = [f"{title}, over updates."]
    for run, found in runs.items():
        for name, kinds in found.items():
            for kind, points in kinds.items():
                least, most = min(points, key=lambda p: p[1]), max(points, key=lambda p: p[1])
                alt.append(
                    f"{run}, {PANELS[name][0]}, {kind}: first {points[0][1]:.4g}, last {points[-1][1]:.4g} at update "
                    f"{points[-1][0]:,}; least {least[1]:.4g} at {least[0]:,}, greatest {most[1]:.4g} at {most[0]:,}."
                )
    return write(figure, path, title, "\n".join(alt), source)
