"""An SVG picture of a parse: the tree over its words and, below it, the decoder's attention to the words.

In the lower part, column w is a word and row t a token of the tree. The darker a cell, the more attention the word gets
when the token is predicted (last layer, mean of heads, sum over the subwords of a word). Each row sums to 1 if its last
column, the end of the sentence, is included.
"""

from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from train.errors import UserError
from train.tasks.parsing.linearize import linearize
from train.tasks.parsing.tokenizer import TreeTokenizer
from train.tasks.parsing.trees import Leaf, Tree, walk
from train.text.xml import xml_safe

# in pixels
CHARACTER = 7.5  # width of a letter
LEVEL = 36  # height of a level of the tree
ROW = 15  # height of a row of attention
MARGIN = 12
MAX_TOKENS = 1000  # maximum number of tokens drawn; the attention maps take quadratic memory
FONT = "font-family='monospace' font-size='12' text-anchor='middle'"


def attention_over_words(model: Any, tokenizer: TreeTokenizer, tree: Tree) -> tuple[list[str], Any]:
    """Return the tokens of a tree, and the attention that each token pays to each word and to the end of the sentence.

    For T tokens, end included, and W words, the attention has the shape (T, W + 1). W is smaller than the number of
    words if the model truncates the sentence.
    """
    words = tree.words()
    config = model.config
    subwords = tokenizer.encode_batch(words)
    sizes = np.array([*map(len, subwords), 1])
    src = [*(i for ids in subwords for i in ids), config.eos_id]
    tgt = [config.bos_id, *tokenizer.encode_trees([tree])[0]]
    if max(len(src), len(tgt)) > MAX_TOKENS:
        raise UserError(
            f"--svg: expected a sentence and a tree of at most {MAX_TOKENS:,} tokens each; got {len(src):,} and "
            f"{len(tgt):,}; try a shorter sentence"
        )
    longest = model.max_length or max(len(src), len(tgt))
    maps = model.attention_maps(np.array([src[:longest]]), np.array([tgt[:longest]]))
    weights = maps[-1][0].mean(axis=0)  # (T, S)
    starts = np.cumsum(sizes) - sizes
    is_read = starts < weights.shape[1]
    sums = np.add.reduceat(weights, starts[is_read], axis=1) * (sizes[is_read] > 0)  # a word may have no tokens
    tokens = [*linearize(tree, tokenizer.uses_tags), "end"]
    return tokens[: len(weights)], sums


def draw_tree(tree: Tree, tokens: Sequence[str], attention: Any) -> str:
    """Return the picture; `tokens` and `attention` are the results of `attention_over_words`."""
    words = tree.words()
    widths = [CHARACTER * max(len(word) + 2, 6) for word in [*words, "end"]]
    label_width = CHARACTER * max(len(token) + 2 for token in tokens)
    edges = np.concatenate([[0.0], np.cumsum(widths)]) + MARGIN + label_width
    centers = (edges[:-1] + edges[1:]) / 2
    elements, depth = _tree_elements(tree, centers)
    top = MARGIN + LEVEL * (depth + 1)
    for word, x in zip([*words, "end"], centers, strict=True):
        elements.append(f"<text x='{x:.1f}' y='{top - 8}' {FONT} font-weight='bold'>{escape(word)}</text>")
    for t, (token, weights) in enumerate(zip(tokens, attention, strict=True)):
        y = top + ROW * t
        elements.append(f"<text x='{MARGIN + label_width / 2:.1f}' y='{y + ROW - 4}' {FONT}>{escape(token)}</text>")
        for x, width, weight in zip(edges, widths, weights, strict=False):
            if weight >= 0.01:
                cell = f"x='{x:.1f}' y='{y}' width='{width:.1f}' height='{ROW}'"
                elements.append(f"<rect {cell} fill='#08519c' fill-opacity='{min(weight, 1):.2f}'/>")
    size = f"width='{edges[-1] + MARGIN:.0f}' height='{top + ROW * len(tokens) + MARGIN}'"
    header = f"<svg xmlns='http://www.w3.org/2000/svg' {size}>", "<rect width='100%' height='100%' fill='white'/>"
    return xml_safe("\n".join([*header, *elements, "</svg>\n"]))


def _tree_elements(tree: Tree, centers: Any) -> tuple[list[str], int]:
    """Return the SVG labels and lines of a tree, and its depth. A constituent is centered over its children."""
    children: list[list[tuple[float, int]]] = [[]]  # positions of the children of each open constituent
    levels = _levels(tree)
    elements = list[str]()
    n_used = 0
    depth = max(levels)
    next_level = iter(levels)
    open_levels = list[int]()
    for part in walk(tree):
        if isinstance(part, Tree):
            children.append([])
            open_levels.append(next(next_level))
        elif isinstance(part, Leaf):
            x, y = float(centers[n_used]), MARGIN + LEVEL * depth
            elements.append(f"<text x='{x:.1f}' y='{y - 10}' {FONT} fill='gray'>{escape(part.tag)}</text>")
            children[-1].append((x, y - 22))
            n_used += 1
        else:
            positions = children.pop()
            y = MARGIN + LEVEL * open_levels.pop()
            x = (positions[0][0] + positions[-1][0]) / 2 if positions else 0.0
            for a, b in positions:  # one line to the next level, then a vertical one: no lines cross
                points = f"{x:.1f},{y + 6} {a:.1f},{min(b, y + LEVEL - 10)} {a:.1f},{b}"
                elements.append(f"<polyline points='{points}' fill='none' stroke='gray'/>")
            elements.append(f"<text x='{x:.1f}' y='{y + 2}' {FONT}>{escape(part)}</text>")
            children[-1].append((x, y - 10))
    return elements, depth


def _levels(tree: Tree) -> list[int]:
    """Return the levels of the constituents in the order of their opening brackets, and then the level of the leaves.

    The root has level 0.
    """
    levels = []
    depth = 0
    for part in walk(tree):
        if isinstance(part, Tree):
            levels.append(depth)
            depth += 1
        elif isinstance(part, str):
            depth -= 1
    return [*levels, max(levels) + 1]
