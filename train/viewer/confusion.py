"""The confusion matrix of a classifier or tagger: labels in rows, predictions in columns."""

from pathlib import Path

import numpy as np

from train.metrics.classification import LabelScores
from train.viewer.picture import COLORMAP, disable_math, new_figure, set_ticks, write_picture

MAX_LABELS = 50  # maximum number of labels drawn; the most frequent ones are chosen
MAX_NAMED_ERRORS = 10  # number of confusions that the alternative text lists
MAX_LABELED_CELLS = 12  # maximum number of labels for which each cell shows its percentage


def draw_confusion(scores: LabelScores, path: Path, caption: str) -> Path:
    """Draw the confusion matrix, in percent of each row; return the path of the alternative text."""
    order = scores.labels_by_frequency()[:MAX_LABELS]
    names = [scores.labels[i] for i in order]
    counts = scores.confusion[np.ix_(order, order)]
    percent = 100 * counts / np.maximum(1, scores.counts[order])[:, None]
    side = max(4.2, 0.19 * len(names) + 2.2)
    figure = new_figure(side + 0.8, side)
    figure.set_layout_engine("constrained")
    axis = figure.add_subplot(1, 1, 1)
    image = axis.imshow(percent, cmap=COLORMAP, vmin=0, vmax=100)
    size = 7 if len(names) > MAX_LABELED_CELLS else 9
    set_ticks(axis.xaxis, range(len(names)), names, rotation=90, fontsize=size)
    set_ticks(axis.yaxis, range(len(names)), names, fontsize=size)
    axis.set_xlabel("predicted", fontsize=9)
    axis.set_ylabel("label", fontsize=9)
    if len(names) <= MAX_LABELED_CELLS:
        for row, column in np.ndindex(percent.shape):
            color = "black" if percent[row, column] > 60 else "white"
            cell = f"{percent[row, column]:.0f}%\n{counts[row, column]:,}"
            axis.text(column, row, cell, ha="center", va="center", color=color, fontsize=8)
    bar = figure.colorbar(image, ax=axis, shrink=0.8)
    bar.ax.tick_params(labelsize=7.5)
    bar.set_label("percent of the row", fontsize=8)
    title = f"Confusion matrix: accuracy {scores.accuracy:.2f}%, macro F1 {scores.macro_f1:.2f}%"
    disable_math(figure.suptitle(title, fontsize=10))
    errors = scores.confusion * (1 - np.eye(len(scores.labels), dtype=int))
    worst = sorted(zip(*np.nonzero(errors), strict=True), key=lambda cell: (-errors[cell], cell))[:MAX_NAMED_ERRORS]
    listed = "; ".join(f"{scores.labels[i]} as {scores.labels[j]} {errors[i, j]:,} times" for i, j in worst)
    shown = f"the {len(names)} most frequent of {len(scores.labels_by_frequency())} labels"
    alt = (
        f"{title}, for {scores.total:,} labels. Rows are labels, columns predictions; {shown}, most frequent first. "
        f"Most frequent errors: {listed or 'none'}."
    )
    return write_picture(figure, path, title, alt, caption)
