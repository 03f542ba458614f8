"""What the heads do on a text: where their greatest weights fall, and what is lost without each of them.

A role is claimed from no weights alone: a weight tells what a head looks at, not what becomes of it. So each head is
switched off once, and the loss of a token and the BLEU of greedy search are measured again (Michel et al. 2019; the
kinds of heads are of Voita et al. 2019).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autograd import no_grad
from models.search import greedy_search
from train.metrics.bleu import corpus_bleu_for_validation
from train.viewer.inspection import Head, all_heads, summary, without
from train.viewer.picture import COLOURS, new, plain, write

# name -> (what it is, its unit or scale)
MEASURES = {
    "before": "at -1",
    "same": "at 0",
    "after": "at +1",
    "rare": "at the rarest",
    "confidence": "greatest weight",
    "entropy": "entropy, bits",
    "distance": "distance, pieces",
    "nats": "without it: nats more",
    "changed": "translations changed",
    "bleu": "BLEU lost",
}
POSITIONAL = 0.9  # share of greatest weights at one place from which a head is called positional


@dataclass
class Role:
    """One head over a text: shares of rows whose greatest weight is at a place; what the model loses without it."""

    head: Head
    measures: dict[str, float]

    @property
    def name(self) -> str:
        """ "positional" where nearly all greatest weights are at one place, "rare" at the rarest piece, or ""."""
        if max(self.measures[place] for place in ("before", "same", "after")) >= POSITIONAL:
            return "positional"
        return "rare pieces" if self.measures["rare"] >= 0.5 else ""


class Text:
    """Some pairs of a corpus, evenly over it, in one batch; and how often each piece occurs in all of it."""

    def __init__(self, corpus: Any, config: Any, tokenizer: Any, pairs: int) -> None:
        self.tokenizer, self.max_extra = tokenizer, config.search.max_extra
        self.tokenize = "none" if config.data.pretokenizer == "whitespace" else "13a"  # as validation does
        chosen = np.arange(0, len(corpus), max(1, len(corpus) // pairs))[:pairs]
        everything = np.concatenate([np.concatenate(corpus.pair(i)) for i in range(len(corpus))])
        self.counts = np.bincount(everything.astype(int), minlength=tokenizer.vocab_size)
        self.pairs = [corpus.pair(int(i)) for i in chosen]
        self.src, self.tgt = corpus.padded(0, chosen), corpus.padded(1, chosen, bos=True)
        self.references = tokenizer.decode_batch([tgt for _, tgt in self.pairs])

    def quality(self, model: Any) -> tuple[float, float, list[str]]:
        """Loss (nats a token), BLEU of greedy search, and what it found."""
        with no_grad():
            loss = model.loss(self.src, self.tgt, smoothing=0.0).item()
        found = greedy_search(model, self.src, max_extra=self.max_extra)
        texts = self.tokenizer.decode_batch([h.tokens for h in found])
        return loss, corpus_bleu_for_validation(texts, self.references, tokenize=self.tokenize), texts


def roles(
    model: Any, text: Text, told: Callable[[int, int], object] = lambda done, of: None
) -> tuple[tuple[float, float], list[Role]]:
    """Loss (nats a token) and BLEU of the whole model, and the role of every head."""
    heads = all_heads(model)
    sums = {head: dict.fromkeys(MEASURES, 0.0) for head in heads}
    for src, tgt in text.pairs:
        src, tgt = [*src, model.config.eos_id], [model.config.bos_id, *tgt]
        inside = model.inside(np.array([src]), np.array([tgt]))
        rarest = {"cross": int(text.counts[src[:-1]].argmin()), "encoder": int(text.counts[src[:-1]].argmin())}
        rarest["decoder"] = 1 + int(text.counts[tgt[1:]].argmin()) if len(tgt) > 1 else 0
        for head in heads:
            weights = inside.maps[head.kind][head.layer][0, head.head].astype(np.float64)
            best, rows = weights.argmax(axis=1), np.arange(len(weights))
            mine = {name: float((best == rows + n).mean()) for n, name in ((-1, "before"), (0, "same"), (1, "after"))}
            mine |= {"rare": float((best == rarest[head.kind]).mean()), **summary(weights)}
            for name, value in mine.items():
                sums[head][name] += value / len(text.pairs)
    loss, bleu, texts = text.quality(model)
    for done, head in enumerate(heads):
        told(done, len(heads))
        with without(model, [head]):
            loss_without, bleu_without, others = text.quality(model)
        changed = sum(a != b for a, b in zip(texts, others, strict=True)) / len(texts)
        sums[head] |= {"nats": loss_without - loss, "bleu": bleu - bleu_without, "changed": changed}
    return (loss, bleu), [Role(head, sums[head]) for head in heads]


def draw_roles(whole: tuple[float, float], found: Sequence[Role], pairs: int, path: Path, source: str) -> Path:
    """A row each head, a column each measure, coloured within the column, with the numbers."""
    table = np.array([[role.measures[name] for name in MEASURES] for role in found])
    spread = np.ptp(table, axis=0)
    shades = (table - table.min(axis=0)) / np.where(spread > 0, spread, 1)
    width, height = 9.6, 0.24 * len(found) + 1.9
    figure = new(width, height)
    title = f"What {len(found)} heads do on {pairs} sentences, and what is lost without each"
    plain(figure.text(0.015, 1 - 0.25 / height, title, fontsize=11, va="center"))
    axis = figure.add_axes((0.13, 0.35 / height, 0.72, 1 - 1.85 / height))
    axis.imshow(shades, cmap=COLOURS, aspect="auto", vmin=0, vmax=1)
    axis.set_yticks(range(len(found)), [str(role.head) for role in found], fontsize=7.5)
    axis.set_xticks(range(len(MEASURES)), list(MEASURES.values()), fontsize=7.5, rotation=20, ha="left")
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    for y, x in np.ndindex(*table.shape):
        ink = "black" if shades[y, x] > 0.6 else "white"
        number = f"{round(float(table[y, x]), 3) + 0.0:.3f}"  # + 0.0: no -0.000
        axis.text(x, y, number, ha="center", va="center", fontsize=7, color=ink)
    for y, role in enumerate(found):
        axis.text(len(MEASURES) - 0.4, y, role.name, fontsize=7.5, va="center")
    below = "at -1, 0, +1, the rarest: share of greatest weights. The whole model:"
    below += f" {whole[0]:.3f} nats a token, BLEU {whole[1]:.2f} (greedy)."
    axis.text(-0.5, len(found) - 0.1, below, fontsize=7.5, va="top", color="0.3")
    alt = [f"{title}. The whole model: {whole[0]:.4f} nats a token, BLEU {whole[1]:.2f}."]
    for role in found:
        numbers = ", ".join(f"{about} {role.measures[name]:.3f}" for name, about in MEASURES.items())
        alt.append(f"{role.head}{f' ({role.name})' if role.name else ''}: {numbers}.")
    return write(figure, path, title, "\n".join(alt), source)
