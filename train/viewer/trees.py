"""Draw a parse as SVG: the tree over its words and, below, the decoder's attention while it generates the tree.

In the lower part each column is a word and each row a token of the linearized tree. Darkness shows the attention to the
word when the token is predicted (last layer, mean over heads, summed over the subwords of a word). A row sums to 1
including the last column, the end of the sentence.
"""

from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from train.tasks.parsing.linearize import linearize
from train.tasks.parsing.tokenizer import TreeTokenizer
from train.tasks.parsing.trees import Leaf, Tree, walk
from train.viewer.picture import valid_xml

CHARACTER, LEVEL, ROW, EDGE = 7.5, 36, 15, 12  # pixels: character width, tree level, row height, margin
INK = "font-family='monospace' font-size='12' text-anchor='middle'"


def attention_over_words(model: Any, tokenizer: TreeTokenizer, tree: Tree) -> tuple[list[str], Any]:
    """Return the T tokens of a tree, end included, and their attention (T, W + 1) to its W words and end of sentence.

    W is smaller than the number of words if the sentence exceeds the model's maximum length.
    """
    words, config = tree.words(), model.config
    word_ids = tokenizer.encode_batch(words)
    sizes = [len(ids) for ids in word_ids if ids]
    src = [*(i for ids in word_ids for i in ids), config.eos_id]
    tgt = [config.bos_id, *tokenizer.encode_trees([tree])[0]]
    longest = model.max_length or max(len(src), len(tgt))
    maps = model.attention_maps(np.array([src[:longest]]), np.array([tgt[:longest]]))
    weights = maps[-1][0].mean(axis=0)  # (T, S)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    tokens = [*linearize(tree, tokenizer.tags), "end"]
    return tokens[: len(weights)], np.add.reduceat(weights, starts[starts < weights.shape[1]], axis=1)


def draw_tree(tree: Tree, tokens: Sequence[str], attention: Any) -> str:
    """Return the SVG; `tokens` and `attention` (T, W + 1) come from `attention_over_words`."""
    words = tree.words()
    widths = [CHARACTER * max(len(word) + 2, 6) for word in [*words, "end"]]
    side = CHARACTER * max(len(token) + 2 for token in tokens)
    edges = np.concatenate([[0.0], np.cumsum(widths)]) + EDGE + side
    centres = (edges[:-1] + edges[1:]) / 2
    marks, depth = _tree(tree, centres)
    top = EDGE + LEVEL * (depth + 1)
    for word, x in zip([*words, "end"], centres, strict=True):
        marks.append(f"<text x='{x:.1f}' y='{top - 8}' {INK} font-weight='bold'>{escape(word)}</text>")
    for t, (token, weights) in enumerate(zip(tokens, attention, strict=True)):
        y = top + ROW * t
        marks.append(f"<text x='{EDGE + side / 2:.1f}' y='{y + ROW - 4}' {INK}>{escape(token)}</text>")
        for x, width, weight in zip(edges, widths, weights, strict=False):
            if weight >= 0.01:
                cell = f"x='{x:.1f}' y='{y}' width='{width:.1f}' height='{ROW}'"
                marks.append(f"<rect {cell} fill='#08519c' fill-opacity='{min(weight, 1):.2f}'/>")
    size = f"width='{edges[-1] + EDGE:.0f}' height='{top + ROW * len(tokens) + EDGE}'"
    begin = f"<svg xmlns='http://www.w3.org/2000/svg' {size}>", "<rect width='100%' height='100%' fill='white'/>"
    return valid_xml("\n".join([*begin, *marks, "</svg>\n"]))


def _tree(tree: Tree, centres: Any) -> tuple[list[str], int]:
    """Return the SVG marks of a tree and its depth; a constituent is centered over its children."""
    placed: list[list[tuple[float, int]]] = [[]]  # for each open constituent, the positions of its children
    levels, marks, used = _heights(tree), list[str](), 0
    depth = max(levels)
    order = iter(levels)
    heights = list[int]()
    for part in walk(tree):
        if isinstance(part, Tree):
            placed.append([])
            heights.append(next(order))
        elif isinstance(part, Leaf):
            x, y = float(centres[used]), EDGE + LEVEL * depth
            marks.append(f"<text x='{x:.1f}' y='{y - 10}' {INK} fill='gray'>{escape(part.tag)}</text>")
            placed[-1].append((x, y - 22))
            used += 1
        else:
            parts = placed.pop()
            y = EDGE + LEVEL * heights.pop()
            x = (parts[0][0] + parts[-1][0]) / 2 if parts else 0.0
            for a, b in parts:  # to the next level, then straight down to a word, so that no lines cross
                points = f"{x:.1f},{y + 6} {a:.1f},{min(b, y + LEVEL - 10)} {a:.1f},{b}"
                marks.append(f"<polyline points='{points}' fill='none' stroke='gray'/>")
            marks.append(f"<text x='{x:.1f}' y='{y + 2}' {INK}>{escape(part)}</text>")
            placed[-1].append((x, y - 10))
    return marks, depth


def _heights(tree: Tree) -> list[int]:
    """Return the level of each constituent in the order they open, 0 at the top, then the level of the leaves."""
    levels, depth = [], 0
    for part in walk(tree):
        if isinstance(part, Tree):
            levels.append(depth)
            depth += 1
        elif isinstance(part, str):
            depth -= 1
    return [*levels, max(levels) + 1]
