"""A picture of a beam search: a column a step, every hypothesis that was kept, ended or dropped, and why it ended."""

from pathlib import Path
from typing import Any

from models.search.tree import CUT, DROPPED, FINISHED, KEPT, Tree
from train.viewer.inspection import labels
from train.viewer.picture import new, plain, write

LOOKS = {  # fate -> (edge, fill, letters)
    KEPT: ("#4477aa", "#e8f0f8", "black"),
    FINISHED: ("#228833", "#e0f2e4", "black"),
    CUT: ("#aa7700", "#f8f0d8", "black"),
    DROPPED: ("#cccccc", "white", "#777777"),
}


def draw_beam(tree: Tree, best: Any, tokenizer: Any, sentence: str, path: Path, source: str) -> Path:
    """The tree of a search that gave `best`, the hypotheses, best first; the way to the best one is thick."""
    from matplotlib.patches import Rectangle

    pieces = labels(tokenizer, [c.token for c in tree.candidates])
    steps = [[i for i, c in enumerate(tree.candidates) if c.length == n + 1] for n in range(len(tree.bounds))]
    wide = 0.075 * max(map(len, pieces)) + 0.55
    most = max(map(len, steps))
    width, height = wide * (len(steps) + 0.6) + 0.3, 0.42 * most + 1.7
    figure = new(max(width, 7.0), height)
    width = figure.get_size_inches()[0]
    axis = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axis.axis("off")
    title = f"Beam search: {sentence}"
    plain(axis.text(0.15, 0.25, title, fontsize=11, va="center"))
    where = {i: (0.3 + wide * (n + 0.65), 1.05 + 0.42 * y) for n, step in enumerate(steps) for y, i in enumerate(step)}
    where[-1] = (0.3, 1.05)
    won = way(tree, best[0]) if best else []
    for i, c in enumerate(tree.candidates):
        (x0, y0), (x, y) = where[c.parent], where[i]
        line: dict[str, Any] = {"color": LOOKS[c.fate][0], "linewidth": 0.7}
        if i in won:
            line = {"color": "#222222", "linewidth": 1.8}
        start = x0 + (wide - 0.2) / 2 if c.parent >= 0 else x0 + 0.1
        axis.plot((start, x - (wide - 0.2) / 2), (y0, y), zorder=1, **line)
    for i, c in enumerate(tree.candidates):
        edge, fill, ink = LOOKS[c.fate]
        x, y = where[i]
        line = {"edgecolor": "#222222", "linewidth": 1.6} if i in won else {"edgecolor": edge, "linewidth": 0.7}
        box: dict[str, Any] = {"facecolor": fill, **line}
        axis.add_patch(Rectangle((x - (wide - 0.2) / 2, y - 0.17), wide - 0.2, 0.34, zorder=2, **box))
        plain(axis.text(x, y - 0.06, pieces[i], ha="center", va="center", fontsize=7.5, color=ink, zorder=3))
        axis.text(x, y + 0.09, f"{c.score:.3f}", ha="center", va="center", fontsize=6, color=ink, zorder=3)
    for n in range(len(steps)):
        axis.text(where[steps[n][0]][0], 0.72, f"{n + 1}", fontsize=7, ha="center", color="0.35")
    axis.text(0.15, 0.5, "step by step; below each piece the score that its hypothesis would have: log-probability "
              "/ length penalty (nats)", fontsize=7.5, color="0.35", va="center")  # fmt: skip
    y = height - 0.42
    for n, (fate, (edge, fill, _)) in enumerate(LOOKS.items()):
        axis.add_patch(Rectangle((0.15 + 1.1 * n, y), 0.16, 0.16, facecolor=fill, edgecolor=edge))
        axis.text(0.37 + 1.1 * n, y + 0.09, fate, fontsize=7.5, va="center")
    axis.text(0.15, height - 0.12, f"Why it ended: {tree.stop_reason}.", fontsize=8, va="center")
    said = [f"{title}.", f"Why it ended: {tree.stop_reason}."]
    for n, h in enumerate(best):
        said.append(f"{n + 1}. {tokenizer.decode(h.tokens)} (score {h.score:.4f}, log-probability "
                    f"{h.log_probability:.4f} nats{'' if h.finished else ', cut off'})")  # fmt: skip
    return write(figure, path, title, "\n".join(said), source)


def way(tree: Tree, hypothesis: Any) -> list[int]:
    """Indices of the candidates that lead to a hypothesis, the last one first."""
    for i, c in enumerate(tree.candidates):
        if (
            c.fate in (FINISHED, CUT)
            and c.score == hypothesis.score
            and c.log_probability == hypothesis.log_probability
        ):
            tokens = tree.tokens(i)
            if (tokens[:-1] if c.fate == FINISHED else tokens) == hypothesis.tokens:
                found = [i]
                while tree.candidates[found[-1]].parent >= 0:
                    found.append(tree.candidates[found[-1]].parent)
                return found
    return []
