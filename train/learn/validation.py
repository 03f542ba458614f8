"""Validation: what a model makes of text it has not learned from."""

import math
import tempfile
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import npx
from autograd import no_grad
from train.learn.anomaly import SUM_ALONE, first_anomaly, unwarned
from train.learn.signals import Signals
from train.run.checkpoint import load_model
from train.run.config import RunConfig
from train.tasks import TASKS, Task


class Validation:
    """Measures a model on a corpus: `measure`. `last` is what it gave last in this process."""

    def __init__(self, task: Task, model: Any, tokenizer: Any, corpus: Any, config: RunConfig) -> None:
        self.task, self.model, self.tokenizer, self.corpus, self.config = task, model, tokenizer, corpus, config
        self.last: dict[str, float] | None = None
        self.failed: tuple[int, Any, Any] | None = None  # number, examples and batch whose loss was not finite

    def measure(self, signals: Signals) -> dict[str, float] | None:
        """Loss without smoothing, perplexity, seconds and the task's scores; None after a signal.

        Of k ranks each computes every k-th batch, and all get the result of all. Where a batch's loss is not finite,
        the loss alone, and the batch is `failed`.
        """
        started, world = time.perf_counter(), npx.distributed.world()
        evaluation = self.task.evaluation(self.config, self.tokenizer, self.corpus)
        losses: dict[int, tuple[float, int]] = {}  # of a batch by its number: its loss and target tokens
        self.failed = None
        self.model.eval()
        try:
            with no_grad():
                batches = enumerate(self.task.in_order(self.corpus, self.config.train.batch_tokens))
                for number, (indices, batch) in islice(batches, world.rank, None, world.size):
                    if signals.asked:
                        return None
                    loss = self.loss(batch)
                    losses[number] = loss, batch.n_target_tokens
                    if not math.isfinite(loss):
                        self.failed = number, indices, batch
                        break
                    if evaluation is not None:
                        evaluation.add(self.model, indices, batch)
        finally:
            self.model.train()
        if world.size > 1:
            ranks = world.gather((losses, evaluation and evaluation.found))
            losses = dict(sorted(one for part, _ in ranks for one in part.items()))
            if evaluation is not None:
                evaluation.found = together([found for _, found in ranks])
        total, targets = 0.0, 0
        for loss, predictions in losses.values():
            total, targets = total + loss, targets + predictions
        if not math.isfinite(total):
            return {"loss": total}
        result = {"loss": total / targets, "perplexity": math.exp(min(total / targets, 700.0))}
        if evaluation is not None:
            result |= evaluation.result()
        result["seconds"] = round(time.perf_counter() - started, 3)
        self.last = result
        return result

    def loss(self, batch: Any) -> float:
        """The sum over a batch's targets, without smoothing."""
        with unwarned():
            return float(self.task.loss(self.model, batch, label_smoothing=0.0, loss_normalizer=1.0).item())

    def blame(self, debug: bool) -> tuple[str, str]:
        """Where the batch that failed stands in the text, and with `debug` the first operation; on all ranks alike."""
        failed, where, found = math.inf, "", ""
        if self.failed is not None:
            failed, examples, batch = self.failed
            where = self.task.where(self.corpus, examples)
            if debug:
                self.model.eval()
                with no_grad():
                    found = first_anomaly(lambda: self.loss(batch)) or SUM_ALONE
                self.model.train()
        _, where, found = min(npx.distributed.world().gather((failed, where, found)))
        return where, found


def together(parts: list[Any]) -> Any:
    """What the evaluations of all ranks have found, lists or dictionaries, as one."""
    if isinstance(parts[0], dict):
        return {key: value for part in parts for key, value in part.items()}
    return [one for part in parts for one in part]


def perplexity(run: str | Path, source: str | Path, references: str | Path) -> dict[str, Any]:
    """Perplexity of references given their source, by the model of a run: a row of the report of scores.

    As the paper counts it: e to the mean loss, without smoothing, of each piece of the vocabulary and of the end of
    each sentence. It depends on the vocabulary, which the signature tells. Pairs with an empty side, or one longer than
    data.max_length, are left out and counted. UserError for bad files or another task's model.
    """
    model, tokenizer, config = load_model(run, "translation")
    task = TASKS["translation"]
    with tempfile.TemporaryDirectory() as folder:
        corpus = task.prepare((str(source), str(references)), tokenizer, Path(folder), config.data.max_length)
        plain = replace(config, train=replace(config.train, validate_bleu=False))
        measured = Validation(task, model, tokenizer, corpus, plain).measure(Signals())
        pieces, pairs = int(corpus.tgt_lengths.sum()), corpus.meta["pairs"]
    assert measured is not None
    left_out = f"|left out:{pairs['read'] - pairs['kept']}" if pairs["read"] > pairs["kept"] else ""
    return {
        "name": "perplexity", "score": measured.get("perplexity", math.inf),
        "use": "of a piece of the vocabulary, ends of sentences counted; lower is better; as in Table 3",
        "signature": f"pieces:{pieces}|types:{tokenizer.vocab_size}|tokenizer:{tokenizer.digest[:12]}{left_out}",
    }  # fmt: skip
