"""Draw attention heads: all of them as mosaics, and the paper's figures 3 to 5 for any sentence."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from train.viewer.inspection import AXES, TEXT_AXES, SentenceInspection, summary
from train.viewer.picture import COLORMAP, disable_math, new_figure, set_ticks, write_picture

CELL, FONT = 0.16, 7.5  # inches per matrix cell, font size in points
LABEL = 0.5  # inches for a label such as "head 0" or "layer 0"
HUES = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bb5566", "#777777")  # one per head


def mosaic(weights: Any, mask: Any) -> Any:
    """Tile weights (L, H, rows, columns) into one matrix, with NaN in the gaps and where the mask, if any, is false."""
    layers, heads, rows, columns = weights.shape
    out = np.full((layers, rows + 1, heads, columns + 1), np.nan)
    if mask is not None:
        weights = np.where(mask, weights, np.nan)
    out[:, :rows, :, :columns] = weights.transpose(0, 2, 1, 3)
    return out.reshape(layers * (rows + 1), heads * (columns + 1))[:-1, :-1]


def draw_heads(
    inspection: SentenceInspection, sentence: str, path: Path, caption: str, kinds: Sequence[str] = tuple(AXES)
) -> Path:
    """Draw a mosaic per kind of attention: layers from top to bottom, heads from left to right, one color scale."""
    axes = AXES | TEXT_AXES
    parts = {kind: mosaic(inspection.maps[kind], inspection.masks[kind]) for kind in kinds}
    longest_label = max(len(label) for label in (*inspection.source, *inspection.target))
    side = 0.07 * longest_label + 0.3  # inches for row or column labels
    titles = {kind: f"{kind}: {axes[kind][0]} (row), {axes[kind][1]} (column)" for kind in kinds}
    sizes = {}  # (height, width) of each part in inches; short sentences have larger cells
    for kind, part in parts.items():
        cells = (max(CELL, LABEL / (len(tokens) + 1)) for tokens in inspection.axis_labels(kind))
        sizes[kind] = tuple(n * cell for n, cell in zip(part.shape, cells, strict=True))
    width = side + max(max(w + 0.9, 0.07 * len(titles[kind])) for kind, (_, w) in sizes.items())
    height = max(sum(h + side + 0.6 for h, _ in sizes.values()) + 0.5, 2.8)  # at least as high as the color bar
    figure = new_figure(width, height)
    title = f"Attention of all heads: {sentence}"
    disable_math(figure.text(0.1 / width, 1 - 0.25 / height, shorten(title, int(width * 11)), fontsize=11, va="center"))
    top = height - 0.5
    image = None
    for kind, part in parts.items():
        rows, columns = inspection.axis_labels(kind)
        layers, heads = inspection.maps[kind].shape[:2]
        part_height, part_width = sizes[kind]
        axis = figure.add_axes(
            (side / width, (top - 0.35 - part_height) / height, part_width / width, part_height / height)
        )
        image = axis.imshow(part, cmap=COLORMAP, vmin=0, vmax=1, interpolation="nearest", aspect="auto")
        axis.set_title(titles[kind], fontsize=9, loc="left", pad=14)
        down = [y + layer * (len(rows) + 1) for layer in range(layers) for y in range(len(rows))]
        right = [x + head * (len(columns) + 1) for head in range(heads) for x in range(len(columns))]
        set_ticks(axis.yaxis, down, rows * layers, fontsize=FONT)
        set_ticks(axis.xaxis, right, columns * heads, fontsize=FONT, rotation=90)
        axis.tick_params(length=0, pad=2)
        for spine in axis.spines.values():
            spine.set_visible(False)
        for head in range(heads):
            x = head * (len(columns) + 1) + len(columns) / 2 - 0.5
            axis.annotate(
                f"head {head}", (x, -0.5), (0, 3), textcoords="offset points", ha="center", fontsize=FONT, color="0.35"
            )
        for layer in range(layers):
            y = layer * (len(rows) + 1) + len(rows) / 2 - 0.5
            axis.text(part.shape[1], y, f"layer {layer}", rotation=270, va="center", fontsize=FONT, color="0.35")
        top -= part_height + side + 0.6
    bar = figure.add_axes((1 - 0.5 / width, 1 - 2.6 / height, 0.12 / width, 1.6 / height))
    figure.colorbar(image, cax=bar).ax.tick_params(labelsize=FONT)
    bar.set_title("weight", fontsize=FONT)
    return write_picture(figure, path, title, describe(inspection, kinds), caption)


def describe(inspection: SentenceInspection, kinds: Sequence[str]) -> str:
    """Describe the picture in words: for each kind of attention, the most confident head and what it attends to."""
    output = "" if "text" in kinds else f" Output: {' '.join(inspection.target)}."
    lines = [f"Input: {' '.join(inspection.source)}.{output} Each row of a head sums to 1."]
    for kind in kinds:
        maps = inspection.maps[kind]
        rows, columns = inspection.axis_labels(kind)
        confidence = {(i, j): summary(maps[i, j])["confidence"] for i, j in np.ndindex(*maps.shape[:2])}
        i, j = max(confidence, key=lambda head: confidence[head])
        attended = ", ".join(f"{row} to {columns[w.argmax()]}" for row, w in zip(rows, maps[i, j], strict=True))
        lines.append(f"{kind}, {len(maps)} layers of {maps.shape[1]} heads: the most confident is head {j} of layer "
                     f"{i}, with a mean maximum weight of {confidence[i, j]:.2f}; it attends: {attended}.")  # fmt: skip
    return "\n".join(lines)


def shorten(text: str, max_length: int) -> str:
    """Shorten text to at most `max_length` characters."""
    return text if len(text) <= max_length else f"{text[: max_length - 3]}..."


# ---- the paper's figures 3 to 5


def draw_links(
    panels: Sequence[tuple[str, Any, int | None]], tokens: Sequence[str], path: Path, title: str, alt: str, caption: str
) -> Path:
    """Draw lines from each token (left) to the tokens it attends to (right), as in the paper's figures 3 to 5.

    A panel is (head numbers, their weights (H, S, S), index of the single token to follow or None).
    """
    from matplotlib.patches import Rectangle

    step = 0.24  # inches, as all sizes below
    label = 0.085 * max(map(len, tokens)) + 0.1
    blocks = 0.09 * max(len(heads) if followed is not None else 0 for heads, _, followed in panels)
    panel_width = 2 * label + 1.9 + blocks
    panel_height = step * (len(tokens) + 2)
    width = max(panel_width * len(panels) + 0.2, 0.08 * len(title) + 0.3)
    height = panel_height + 0.45
    figure = new_figure(width, height)
    disable_math(figure.text(0.15 / width, 1 - 0.22 / height, title, fontsize=10, va="center"))
    for n, (heads, weights, followed) in enumerate(panels):
        rect = ((0.15 + n * panel_width) / width, 0.05 / height, (panel_width - 0.2) / width, panel_height / height)
        axis = figure.add_axes(rect, xlim=(0, panel_width - 0.2), ylim=(len(tokens) + 0.5, -1.5))
        axis.axis("off")
        left, right = label, panel_width - 0.3 - label - blocks
        for y, token in enumerate(tokens):
            color = "0.6" if followed not in (None, y) else "black"
            disable_math(axis.text(left - 0.06, y, token, ha="right", va="center", fontsize=8.5, color=color))
            disable_math(axis.text(right + blocks + 0.08, y, token, ha="left", va="center", fontsize=8.5))
        for h, (head, head_weights) in enumerate(zip(heads, weights, strict=True)):
            hue = HUES[h % len(HUES)]
            axis.add_patch(Rectangle((left + 0.45 * h, -1.12), 0.1, 0.45, color=hue, linewidth=0))
            axis.text(left + 0.45 * h + 0.14, -0.9, f"{head}", va="center", fontsize=8)
            for y in range(len(tokens)) if followed is None else (followed,):
                for x, weight in enumerate(head_weights[y]):
                    if weight >= 0.05:
                        axis.plot((left, right), (y, x), color=hue, alpha=min(1.0, weight), linewidth=1.2)
            for x, weight in enumerate(head_weights[followed] if followed is not None else ()):
                box = (right + 0.04 + 0.09 * h, x - 0.4), 0.08, 0.8
                axis.add_patch(Rectangle(*box, color=hue, alpha=min(1.0, float(weight)), linewidth=0))
        axis.text(left - 0.06, -0.9, "heads" if len(heads) > 1 else "head", ha="right", va="center", fontsize=8)
    return write_picture(figure, path, title, alt, caption, follow_links=False)


def draw_figures(inspection: SentenceInspection, word: str, layer: int, out: Path, caption: str) -> list[Path]:
    """Draw the paper's figures 3, 4 and 5 into the folder `out`: encoder self-attention of one layer for `word`.

    Figure 4 shows the two heads in which the word attends most to other tokens, and figure 5 the two most confident
    heads over the complete sentence.
    """
    tokens, maps = inspection.source, inspection.maps["encoder"][layer]  # (H, S, S)
    row = tokens.index(word)
    heads = range(len(maps))
    outward = sorted(heads, key=lambda h: maps[h, row, row])[:2]
    confident_heads = sorted(heads, key=lambda h: -summary(maps[h])["confidence"])[:2]
    layer_text = f"encoder self-attention, layer {layer} (counted from 0)"

    def attended(h: int, query: int) -> str:
        best = np.argsort(-maps[h, query], kind="stable")[:2]
        return f"head {h}: " + ", ".join(f"{tokens[x]} {maps[h, query, x]:.2f}" for x in best)

    sentence = " ".join(tokens)
    all_heads_text = "; ".join(attended(h, row) for h in heads)
    outward_text = f"Largest weights from '{word}': {'; '.join(attended(h, row) for h in outward)}."
    confident_text = "\n".join(
        f"{p}: {'; '.join(attended(h, y) for h in confident_heads)}." for y, p in enumerate(tokens)
    )
    drawings: list[tuple[str, Any, str, str]] = [
        (
            "figure3",
            [(heads, maps, row)],
            f"What '{word}' attends to: {layer_text}",
            f"From '{word}': {all_heads_text}.",
        ),
        (
            "figure4",
            [(outward, maps[outward], None), (outward, maps[outward], row)],
            f"Two heads that attend from '{word}' to other tokens: {layer_text}",
            outward_text,
        ),
        (
            "figure5",
            [([h], maps[[h]], None) for h in confident_heads],
            f"The two most confident heads and what each token attends to: {layer_text}",
            confident_text,
        ),
    ]
    out.mkdir(parents=True, exist_ok=True)
    files = [out / f"{name}.svg" for name, *_ in drawings]
    for file, (_, panels, title, alt) in zip(files, drawings, strict=True):
        draw_links(panels, tokens, file, title, f"{sentence}\n{alt}", caption)
    return files
