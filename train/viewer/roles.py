"""Measure the role of each attention head on a text: where its maximum weights fall, and the cost of its ablation.

Weights alone do not prove a role: they show what a head attends to, not whether the output depends on it. Each head is
therefore ablated in turn, and the loss per token and the score of the run's validations, such as BLEU, are measured
again (Michel et al., 2019; the types of heads follow Voita et al., 2019).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autograd import no_grad
from models.search import greedy_search
from train.run.config import RunConfig
from train.tasks import Task
from train.tasks.protocols import TextTokenizer
from train.text.batches import PairBatch
from train.text.corpus import PairCorpus
from train.viewer.inspection import Head, ablate_heads, all_heads, summary
from train.viewer.picture import COLORMAP, disable_math, new_figure, write_picture

# maps a name to a column title
MEASURES = {
    "before": "at previous token",
    "same": "at itself",
    "after": "at next token",
    "rare": "at rarest token",
    "confidence": "maximum weight",
    "entropy": "entropy (bits)",
    "distance": "distance (tokens)",
    "loss_increase": "ablated: loss increase",
    "changed": "outputs changed",
    "score_decrease": "{score} lost",  # omitted if the run's validations measure only the loss
}
POSITIONAL = 0.9  # a head is positional if at least this fraction of its maximum weights is at one offset


@dataclass
class Role:
    """The behavior of a head on a text.

    This is the fraction of queries that attend most to each kind of position, and the cost of ablating the head.
    """

    head: Head
    measures: dict[str, float]

    @property
    def name(self) -> str:
        """Return "positional", "rare tokens" or ""."""
        if max(self.measures[place] for place in ("before", "same", "after")) >= POSITIONAL:
            return "positional"
        return "rare tokens" if self.measures["rare"] >= 0.5 else ""


class EvaluationText:
    """A batch of pairs spread evenly over a corpus, with the token counts of the complete corpus.

    score_name: name of the task's score in the run's validations; "" if they measure only the loss.
    """

    def __init__(
        self, task: Task, corpus: PairCorpus, config: RunConfig, tokenizer: TextTokenizer, n_pairs: int
    ) -> None:
        self.max_extra_tokens = config.search.max_extra_tokens
        self.evaluation = task.evaluation(config, tokenizer, corpus)
        scores: Mapping[str, str] = task.scores if self.evaluation is not None else {}
        self.score_key, self.score_name = next(iter(scores.items()), ("", ""))
        self.indices = np.arange(0, len(corpus), max(1, len(corpus) // n_pairs))[:n_pairs]
        sides = zip(*(corpus.pair(i) for i in range(len(corpus))), strict=True)
        sizes = tokenizer.src_vocab_size or tokenizer.vocab_size, tokenizer.vocab_size
        src_counts, tgt_counts = (
            np.bincount(np.concatenate(side).astype(int), minlength=size)
            for side, size in zip(sides, sizes, strict=True)
        )
        if tokenizer.src_vocab_size is None:  # one vocabulary
            src_counts = tgt_counts = src_counts + tgt_counts
        self.src_counts, self.tgt_counts = src_counts, tgt_counts
        self.pairs = [corpus.pair(int(i)) for i in self.indices]
        self.batch = PairBatch(
            corpus.pad_rows(0, self.indices), corpus.pad_rows(1, self.indices, bos=True), corpus.special_ids.pad_id
        )

    def evaluate(self, model: Any) -> tuple[float, float, list[Any]]:
        """Return the loss (nats per token), the score and the outputs of greedy search."""
        with no_grad():
            loss = model.loss(self.batch.src, self.batch.tgt, label_smoothing=0.0).item()
        if self.evaluation is None or not self.score_name:
            hypotheses = greedy_search(model, self.batch.src, max_extra_tokens=self.max_extra_tokens)
            return loss, 0.0, [h.tokens for h in hypotheses]
        self.evaluation.records = type(self.evaluation.records)()  # empty
        self.evaluation.add(model, self.indices, self.batch)
        records = self.evaluation.records
        outputs = list(records.values() if isinstance(records, dict) else records)
        return loss, self.evaluation.result()[self.score_key], outputs


def measure_roles(
    model: Any, text: EvaluationText, on_progress: Callable[[int, int], object] = lambda done, of: None
) -> tuple[tuple[float, float], list[Role]]:
    """Return the loss (nats per token) and the score of the model without ablation, and the role of every head.

    `on_progress(done, total)` is called before each head.
    """
    heads = all_heads(model)
    sums = {head: dict.fromkeys(MEASURES, 0.0) for head in heads}
    for src, tgt in text.pairs:
        src = [*src, model.config.eos_id]
        tgt = [model.config.bos_id, *tgt]
        internals = model.inspect(np.array([src]), np.array([tgt]))
        rarest = {"cross": int(text.src_counts[src[:-1]].argmin()), "encoder": int(text.src_counts[src[:-1]].argmin())}
        rarest["decoder"] = 1 + int(text.tgt_counts[tgt[1:]].argmin()) if len(tgt) > 1 else 0
        for head in heads:
            weights = internals.maps[head.kind][head.layer][0, head.head].astype(np.float64)
            maxima = weights.argmax(axis=1)
            rows = np.arange(len(weights))
            measures = {
                name: float((maxima == rows + n).mean()) for n, name in ((-1, "before"), (0, "same"), (1, "after"))
            }
            measures |= {"rare": float((maxima == rarest[head.kind]).mean()), **summary(weights)}
            for name, value in measures.items():
                sums[head][name] += value / len(text.pairs)
    loss, score, outputs = text.evaluate(model)
    for done, head in enumerate(heads):
        on_progress(done, len(heads))
        with ablate_heads(model, [head]):
            loss_without, score_without, others = text.evaluate(model)
        changed = sum(a != b for a, b in zip(outputs, others, strict=True)) / len(outputs)
        sums[head] |= {
            "loss_increase": loss_without - loss,
            "score_decrease": score - score_without,
            "changed": changed,
        }
    return (loss, score), [Role(head, sums[head]) for head in heads]


def draw_roles(
    baseline: tuple[float, float], roles: Sequence[Role], text: EvaluationText, path: Path, caption: str
) -> Path:
    """Draw a table with one row per head and one column per measure, colored within each column."""
    columns = {
        name: title.format(score=text.score_name)
        for name, title in MEASURES.items()
        if text.score_name or name != "score_decrease"
    }
    table = np.array([[role.measures[name] for name in columns] for role in roles])
    ranges = np.ptp(table, axis=0)
    shades = (table - table.min(axis=0)) / np.where(ranges > 0, ranges, 1)
    width, height = 9.6, 0.24 * len(roles) + 2.1
    figure = new_figure(width, height)
    title = f"Roles of {len(roles)} attention heads on {len(text.pairs)} sentences, and the cost of ablating each"
    disable_math(figure.text(0.015, 1 - 0.25 / height, title, fontsize=11, va="center"))
    axis = figure.add_axes((0.13, 0.5 / height, 0.72, 1 - 2.05 / height))
    axis.imshow(shades, cmap=COLORMAP, aspect="auto", vmin=0, vmax=1)
    axis.set_yticks(range(len(roles)), [str(role.head) for role in roles], fontsize=7.5)
    axis.set_xticks(range(len(columns)), list(columns.values()), fontsize=7.5, rotation=20, ha="left")
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    for y, x in np.ndindex(*table.shape):
        ink = "black" if shades[y, x] > 0.6 else "white"
        number = f"{round(float(table[y, x]), 3) + 0.0:.3f}"  # adding 0.0 turns -0.0 into 0.0
        axis.text(x, y, number, ha="center", va="center", fontsize=7, color=ink)
    for y, role in enumerate(roles):
        axis.text(len(columns) - 0.4, y, role.name, fontsize=7.5, va="center")
    score = f", {text.score_name} {baseline[1]:.2f} (greedy)" if text.score_name else ""
    legend = (
        "at ...: fraction of maximum weights; loss increase in nats per token; colors: from the least (dark) to the "
        f"greatest (light) value of a column.\nModel without ablation: {baseline[0]:.3f} nats per token{score}."
    )
    axis.text(-0.5, len(roles) - 0.1, legend, fontsize=7.5, va="top", color="0.3")
    alt = [f"{title}. Model without ablation: {baseline[0]:.4f} nats per token{score}."]
    for role in roles:
        numbers = ", ".join(f"{column} {role.measures[name]:.3f}" for name, column in columns.items())
        alt.append(f"{role.head}{f' ({role.name})' if role.name else ''}: {numbers}.")
    return write_picture(figure, path, title, "\n".join(alt), caption)
