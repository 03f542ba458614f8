"""Draw a beam search: a column per step with the live, finished and dropped hypotheses, and why the search ended.

A long search is divided into bands of at most MAX_WIDTH inches. Each band begins with the live hypotheses of the band
above.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.search.tree import CUT, DROPPED, FINISHED, KEPT, SearchTree
from train.viewer.heads import shorten
from train.viewer.inspection import output_text, token_texts
from train.viewer.picture import disable_math, new_figure, write_picture

MAX_WIDTH = 11.0  # inches, below 1,600 pixels
ROW = 0.42  # inches between the hypotheses of a step
STYLES = {  # maps a fate to (edge, fill, text color)
    KEPT: ("#4477aa", "#e8f0f8", "black"),
    FINISHED: ("#228833", "#e0f2e4", "black"),
    CUT: ("#aa7700", "#f8f0d8", "black"),
    DROPPED: ("#cccccc", "white", "#777777"),
}


def draw_beam(tree: SearchTree, best: Any, tokenizer: Any, sentence: str, path: Path, caption: str) -> Path:
    """Draw the search tree.

    Args:
        best: the final hypotheses, best first; the path to the first one is drawn as a thick line.
    """
    from matplotlib.patches import Rectangle

    tokens = token_texts(tokenizer, [c.token for c in tree.candidates])
    steps = [[i for i, c in enumerate(tree.candidates) if c.length == n + 1] for n in range(len(tree.bounds))]
    column = 0.075 * max(map(len, tokens)) + 0.55
    bands = wrap(steps, tree, max(2, int((MAX_WIDTH - 0.3) / column - 0.6)))
    heights = [ROW * max(map(len, band.values())) + 0.45 for band in bands]
    width = column * (max(map(len, bands)) + 0.6) + 0.3
    height = sum(heights) + 1.25
    figure = new_figure(max(width, 7.0), height)
    width = figure.get_size_inches()[0]
    axis = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axis.axis("off")
    title = f"Beam search: {sentence}"
    disable_math(axis.text(0.15, 0.25, shorten(title, int(width * 11)), fontsize=11, va="center"))
    best_path = path_to(tree, best[0]) if best else []
    top = 0.72
    for band, band_height in zip(bands, heights, strict=True):
        positions = {
            i: (0.3 + column * (n + 0.65), top + 0.33 + ROW * y)
            for n, step in enumerate(band.values()) for y, i in enumerate(step)
        }  # fmt: skip
        positions[-1] = (0.3, top + 0.33)
        for n, step in band.items():
            axis.text(positions[step[0]][0], top, f"{n + 1}", fontsize=7, ha="center", color="0.35")
        for i, (x, y) in positions.items():
            if i < 0:
                continue
            c = tree.candidates[i]
            is_best = i in best_path
            edge, fill, ink = STYLES[c.fate]
            line: dict[str, Any] = {"color": "#222222" if is_best else edge, "linewidth": 1.8 if is_best else 0.7}
            if c.parent in positions:
                x0, y0 = positions[c.parent]
                start = x0 + (column - 0.2) / 2 if c.parent >= 0 else x0 + 0.1
                axis.plot((start, x - (column - 0.2) / 2), (y0, y), zorder=1, **line)
            box = {"facecolor": fill, "edgecolor": line["color"], "linewidth": 1.6 if is_best else 0.7}
            axis.add_patch(Rectangle((x - (column - 0.2) / 2, y - 0.17), column - 0.2, 0.34, zorder=2, **box))
            disable_math(axis.text(x, y - 0.06, tokens[i], ha="center", va="center", fontsize=7.5, color=ink, zorder=3))
            axis.text(x, y + 0.09, f"{c.score:.3f}", ha="center", va="center", fontsize=6, color=ink, zorder=3)
        top += band_height
    axis.text(0.15, 0.5, "one column per step; below each token the score of its hypothesis: log-probability / length "
              "penalty (nats)", fontsize=7.5, color="0.35", va="center")  # fmt: skip
    y = height - 0.42
    for n, (fate, (edge, fill, _)) in enumerate(STYLES.items()):
        axis.add_patch(Rectangle((0.15 + 1.1 * n, y), 0.16, 0.16, facecolor=fill, edgecolor=edge))
        axis.text(0.37 + 1.1 * n, y + 0.09, fate, fontsize=7.5, va="center")
    axis.text(0.15, height - 0.12, f"The search ended: {tree.stop_reason}.", fontsize=8, va="center")
    alt = [title, f"The search ended: {tree.stop_reason}."]
    for n, h in enumerate(best):
        alt.append(f"{n + 1}. {output_text(tokenizer, sentence, h.tokens)} (score {h.score:.4f}, log-probability "
                    f"{h.log_probability:.4f} nats{'' if h.finished else ', cut off'})")  # fmt: skip
    return write_picture(figure, path, title, "\n".join(alt), caption)


def wrap(steps: Sequence[Sequence[int]], tree: SearchTree, max_columns: int) -> list[dict[int, list[int]]]:
    """Divide the steps into bands of at most `max_columns` columns; a band maps each of its steps to the candidates.

    Every band except the first begins with the live candidates of the step before it.
    """
    bands = [{n: list(steps[n]) for n in range(min(max_columns, len(steps)))}]
    for start in range(max_columns, len(steps), max_columns - 1):
        live = [i for i in steps[start - 1] if tree.candidates[i].fate == KEPT]
        rest = range(start, min(start + max_columns - 1, len(steps)))
        bands.append({start - 1: live} | {n: list(steps[n]) for n in rest})
    return bands


def path_to(tree: SearchTree, hypothesis: Any) -> list[int]:
    """Return the indices of the candidates that lead to a hypothesis, starting with the last one."""
    for i, c in enumerate(tree.candidates):
        if (
            c.fate in (FINISHED, CUT)
            and c.score == hypothesis.score
            and c.log_probability == hypothesis.log_probability
        ):
            tokens = tree.tokens(i)
            if (tokens[:-1] if c.fate == FINISHED else tokens) == hypothesis.tokens:
                path = [i]
                while tree.candidates[path[-1]].parent >= 0:
                    path.append(tree.candidates[path[-1]].parent)
                return path
    return []
