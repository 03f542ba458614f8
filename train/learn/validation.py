"""Validation: what a model makes of text it has not learned from."""

import math
import time
from typing import Any

from autograd import no_grad
from train.learn.signals import Signals
from train.run.config import RunConfig
from train.tasks import Task


class Validation:
    """Measures a model on a corpus: `measure`. `last` is what it gave last in this process."""

    def __init__(self, task: Task, model: Any, tokenizer: Any, corpus: Any, config: RunConfig) -> None:
        self.task, self.model, self.tokenizer, self.corpus, self.config = task, model, tokenizer, corpus, config
        self.last: dict[str, float] | None = None

    def measure(self, signals: Signals) -> dict[str, float] | None:
        """Loss without smoothing, perplexity, seconds and the task's scores; None after a signal.

        Where the loss is not finite, the loss alone.
        """
        started = time.perf_counter()
        evaluation = self.task.evaluation(self.config, self.tokenizer, self.corpus)
        total, targets = 0.0, 0
        self.model.eval()
        try:
            with no_grad():
                for indices, batch in self.task.in_order(self.corpus, self.config.train.batch_tokens):
                    if signals.asked:
                        return None
                    total += self.task.loss(self.model, batch, smoothing=0.0, normalizer=1.0).item()
                    targets += batch.n_target_tokens
                    if evaluation is not None:
                        evaluation.add(self.model, indices, batch)
        finally:
            self.model.train()
        if not math.isfinite(total):
            return {"loss": total}
        result = {"loss": total / targets, "perplexity": math.exp(min(total / targets, 700.0))}
        if evaluation is not None:
            result |= evaluation.result()
        result["seconds"] = round(time.perf_counter() - started, 3)
        self.last = result
        return result
