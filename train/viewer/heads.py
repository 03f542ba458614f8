"""Pictures of heads: all of them as mosaics, and the paper's figures 3 to 5 on a sentence of one's own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from train.viewer.inspection import ABOUT, Seen, summary
from train.viewer.picture import COLOURS, new, plain, ticks, write

SIDE, FONT = 0.16, 7.5  # inches of a field, points of a letter
HUES = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bb5566", "#777777")  # one a head


def mosaic(weights: Any, causal: bool) -> Any:
    """Weights (L, H, rows, columns) as one matrix with a gap between heads; NaN there, and where nothing may be."""
    layers, heads, rows, columns = weights.shape
    out = np.full((layers, rows + 1, heads, columns + 1), np.nan)
    if causal:
        weights = np.where(np.tri(rows, columns, dtype=bool), weights, np.nan)
    out[:, :rows, :, :columns] = weights.transpose(0, 2, 1, 3)
    return out.reshape(layers * (rows + 1), heads * (columns + 1))[:-1, :-1]


def draw_heads(seen: Seen, sentence: str, path: Path, source: str, kinds: Sequence[str] = tuple(ABOUT)) -> Path:
    """All heads of all layers, a mosaic a kind: layers downwards, heads to the right, one scale of colour for all."""
    parts = {kind: mosaic(seen.maps[kind], kind == "decoder") for kind in kinds}
    side = 0.07 * max(len(label) for label in (*seen.source, *seen.target)) + 0.3  # inches for the labels of an edge
    width = max(p.shape[1] for p in parts.values()) * SIDE + side + 0.9
    height = sum(p.shape[0] * SIDE + side + 0.6 for p in parts.values()) + 0.5
    figure = new(width, height)
    title = f"Attention of all heads: {sentence}"
    plain(figure.text(0.1 / width, 1 - 0.25 / height, shortened(title, int(width * 11)), fontsize=11, va="center"))
    top, image = height - 0.5, None
    for kind, part in parts.items():
        rows, columns = seen.edges(kind)
        layers, heads = seen.maps[kind].shape[:2]
        tall, wide = part.shape[0] * SIDE, part.shape[1] * SIDE
        axis = figure.add_axes((side / width, (top - 0.35 - tall) / height, wide / width, tall / height))
        image = axis.imshow(part, cmap=COLOURS, vmin=0, vmax=1, interpolation="nearest", aspect="auto")
        axis.set_title(f"{kind}: {ABOUT[kind][0]} (row), {ABOUT[kind][1]} (column)", fontsize=9, loc="left", pad=14)
        down = [y + layer * (len(rows) + 1) for layer in range(layers) for y in range(len(rows))]
        right = [x + head * (len(columns) + 1) for head in range(heads) for x in range(len(columns))]
        ticks(axis.yaxis, down, rows * layers, fontsize=FONT)
        ticks(axis.xaxis, right, columns * heads, fontsize=FONT, rotation=90)
        axis.tick_params(length=0, pad=2)
        for spine in axis.spines.values():
            spine.set_visible(False)
        for head in range(heads):
            x = head * (len(columns) + 1) + len(columns) / 2 - 0.5
            axis.text(x, -0.8, f"head {head}", ha="center", va="bottom", fontsize=FONT, color="0.35")
        for layer in range(layers):
            y = layer * (len(rows) + 1) + len(rows) / 2 - 0.5
            axis.text(part.shape[1], y, f"layer {layer}", rotation=270, va="center", fontsize=FONT, color="0.35")
        top -= tall + side + 0.6
    bar = figure.add_axes((1 - 0.5 / width, 1 - 2.6 / height, 0.12 / width, 1.6 / height))
    figure.colorbar(image, cax=bar).ax.tick_params(labelsize=FONT)
    bar.set_title("weight", fontsize=FONT)
    return write(figure, path, title, spoken(seen, kinds), source)


def spoken(seen: Seen, kinds: Sequence[str]) -> str:
    """The picture in words: of each kind the head that is surest, and where it looks."""
    lines = [f"Source: {' '.join(seen.source)}. Written: {' '.join(seen.target)}. A row of a head sums to 1."]
    for kind in kinds:
        maps, (rows, columns) = seen.maps[kind], seen.edges(kind)
        sure = {(i, j): summary(maps[i, j])["confidence"] for i, j in np.ndindex(*maps.shape[:2])}
        i, j = max(sure, key=lambda head: sure[head])
        looks = ", ".join(f"{row} at {columns[w.argmax()]}" for row, w in zip(rows, maps[i, j], strict=True))
        lines.append(f"{kind}, {len(maps)} layers of {maps.shape[1]} heads: the surest is head {j} of layer {i}, whose "
                     f"greatest weight is {sure[i, j]:.2f} in the mean; it looks so: {looks}.")  # fmt: skip
    return "\n".join(lines)


def shortened(text: str, most: int) -> str:
    """Text of at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


# ---- as in the paper


def draw_links(
    panels: Sequence[tuple[str, Any, int | None]], pieces: Sequence[str], path: Path, title: str, alt: str, source: str
) -> Path:
    """Lines from each piece (left) to those that it looks at (right), in the manner of the paper's figures 3 to 5.

    Each panel: its heads by number, the weights (H, S, S) of those, the one piece that is followed, or None.
    """
    from matplotlib.patches import Rectangle

    step, letters = 0.24, 0.085 * max(map(len, pieces)) + 0.1  # inches
    blocks = 0.09 * max(len(heads) if followed is not None else 0 for heads, _, followed in panels)
    wide = 2 * letters + 1.9 + blocks
    tall = step * (len(pieces) + 2)
    width, height = max(wide * len(panels) + 0.2, 0.08 * len(title) + 0.3), tall + 0.45
    figure = new(width, height)
    plain(figure.text(0.15 / width, 1 - 0.22 / height, title, fontsize=10, va="center"))
    for n, (heads, weights, followed) in enumerate(panels):
        rect = ((0.15 + n * wide) / width, 0.05 / height, (wide - 0.2) / width, tall / height)
        axis = figure.add_axes(rect, xlim=(0, wide - 0.2), ylim=(len(pieces) + 0.5, -1.5))
        axis.axis("off")
        left, right = letters, wide - 0.3 - letters - blocks
        for y, piece in enumerate(pieces):
            faint = "0.6" if followed not in (None, y) else "black"
            plain(axis.text(left - 0.06, y, piece, ha="right", va="center", fontsize=8.5, color=faint))
            plain(axis.text(right + blocks + 0.08, y, piece, ha="left", va="center", fontsize=8.5))
        for h, (head, of_head) in enumerate(zip(heads, weights, strict=True)):
            hue = HUES[h % len(HUES)]
            axis.add_patch(Rectangle((left + 0.45 * h, -1.12), 0.1, 0.45, color=hue, linewidth=0))
            axis.text(left + 0.45 * h + 0.14, -0.9, f"{head}", va="center", fontsize=8)
            for y in range(len(pieces)) if followed is None else (followed,):
                for x, weight in enumerate(of_head[y]):
                    if weight >= 0.05:
                        axis.plot((left, right), (y, x), color=hue, alpha=min(1.0, weight), linewidth=1.2)
            for x, weight in enumerate(of_head[followed] if followed is not None else ()):
                where = (right + 0.04 + 0.09 * h, x - 0.4), 0.08, 0.8
                axis.add_patch(Rectangle(*where, color=hue, alpha=min(1.0, float(weight)), linewidth=0))
        axis.text(left - 0.06, -0.9, "heads" if len(heads) > 1 else "head", ha="right", va="center", fontsize=8)
    return write(figure, path, title, alt, source)


def draw_figures(seen: Seen, word: str, layer: int, out: Path, source: str) -> list[Path]:
    """Figures 3, 4 and 5 of the paper in the folder `out`: encoder self-attention of one layer, followed from `word`.

    4 shows the two heads that look from it to other pieces most, 5 the two that are surest over the whole sentence.
    """
    pieces, maps = seen.source, seen.maps["encoder"][layer]  # (H, S, S)
    at = pieces.index(word)
    heads = range(len(maps))
    away = sorted(heads, key=lambda h: maps[h, at, at])[:2]
    rest = [h for h in heads if h not in away] or list(heads)
    sure = sorted(rest, key=lambda h: -summary(maps[h])["confidence"])[:2]
    where = f"encoder self-attention, layer {layer + 1} of {len(seen.maps['encoder'])}"

    def looks(h: int, row: int) -> str:
        best = np.argsort(-maps[h, row], kind="stable")[:2]
        return f"head {h}: " + ", ".join(f"{pieces[x]} {maps[h, row, x]:.2f}" for x in best)

    sentence, all_of = " ".join(pieces), "; ".join(looks(h, at) for h in heads)
    of_word = f"From '{word}' the greatest weights are, {'; '.join(looks(h, at) for h in away)}."
    of_sure = "\n".join(f"{p}: {'; '.join(looks(h, y) for h in sure)}." for y, p in enumerate(pieces))
    drawings: list[tuple[str, Any, str, str]] = [
        ("figure3", [(heads, maps, at)], f"Where '{word}' looks: {where}", f"From '{word}': {all_of}."),
        (
            "figure4",
            [(away, maps[away], None), (away, maps[away], at)],
            f"Two heads that look from '{word}' to other pieces: {where}",
            of_word,
        ),
        (
            "figure5",
            [([h], maps[[h]], None) for h in sure],
            f"Two sure heads, what each piece looks at: {where}",
            of_sure,
        ),
    ]
    out.mkdir(parents=True, exist_ok=True)
    files = [out / f"{name}.svg" for name, *_ in drawings]
    for file, (_, panels, title, alt) in zip(files, drawings, strict=True):
        draw_links(panels, pieces, file, title, f"{sentence}\n{alt}", source)
    return files
