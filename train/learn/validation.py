"""Validation: the loss and scores of a model on held-out text."""

import math
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import npx
from autograd import no_grad
from train.errors import plural
from train.learn.anomaly import NO_OPERATION, first_anomaly, ignore_nonfinite_warnings
from train.learn.signals import Signals
from train.progress import Display
from train.run.checkpoint import load_model
from train.run.config import RunConfig
from train.run.keys import TrainSection
from train.tasks import TASKS, Task
from train.tasks.protocols import Batch, Corpus, TextTokenizer, TrainableModel


class Validator:
    """Measures a model on a corpus. `last_result` is the newest result; it is not restored when a run resumes."""

    def __init__(
        self,
        task: Task,
        model: TrainableModel,
        tokenizer: TextTokenizer,
        corpus: Corpus,
        config: RunConfig,
        display: Display | None = None,
    ) -> None:
        self.task = task
        self.model = model
        self.tokenizer = tokenizer
        self.corpus = corpus
        self.config = config
        self.display = display or Display(enabled=False)
        self.last_result: dict[str, float] | None = None
        self.failure: tuple[int, Any, Batch] | None = None  # index, examples and batch of a loss that is not finite

    def measure(self, signals: Signals) -> dict[str, float] | None:
        """Return loss (without smoothing), perplexity, seconds and the task's scores; None if a stop is requested.

        Each of k ranks computes every k-th batch, and all return the combined result. After a non-finite loss the
        result contains only that loss, and `failure` holds its batch.
        """
        start, world = time.perf_counter(), npx.distributed.world()
        evaluation = self.task.evaluation(self.config, self.tokenizer, self.corpus)
        losses: dict[int, tuple[float, int]] = {}  # maps the index of a batch to its loss and target tokens
        self.failure = None
        self.model.eval()
        try:
            # The corpus of a user-defined task may not have this attribute.
            n_targets = getattr(self.corpus, "n_targets", None)
            with no_grad(), self.display.work("validation", "tokens", n_targets) as work:
                batches = enumerate(self.task.validation_batches(self.corpus, self.config.train.batch_tokens))
                for index, (examples, batch) in islice(batches, world.rank, None, world.size):
                    if signals.stop_requested:
                        return None
                    loss = self.loss(batch)
                    losses[index] = loss, batch.n_targets
                    if not math.isfinite(loss):
                        self.failure = index, examples, batch
                        break
                    if evaluation is not None:
                        evaluation.add(self.model, examples, batch)
                    # Assume that the other ranks have made about the same progress.
                    work.advance(batch.n_targets * world.size)
        finally:
            self.model.train()
        if world.size > 1:
            ranks = world.all_gather_object((losses, evaluation and evaluation.records))
            losses = dict(sorted(item for losses, _ in ranks for item in losses.items()))
            if evaluation is not None:
                evaluation.records = merge_records([records for _, records in ranks])
        total_loss, total_targets = 0.0, 0
        for loss, n_targets in losses.values():
            total_loss += loss
            total_targets += n_targets
        if not math.isfinite(total_loss):
            return {"loss": total_loss}
        mean_loss = total_loss / total_targets
        result = {"loss": mean_loss, "perplexity": math.exp(min(mean_loss, 700.0))}
        if evaluation is not None:
            result |= evaluation.result()
        result["seconds"] = round(time.perf_counter() - start, 3)
        self.last_result = result
        return result

    def loss(self, batch: Batch) -> float:
        """Return the loss summed over a batch's targets, without smoothing."""
        with ignore_nonfinite_warnings():
            return float(
                self.model.loss(*self.task.loss_inputs(batch), label_smoothing=0.0, loss_normalizer=1.0).item()
            )

    def locate_nonfinite(self, find_operation: bool) -> tuple[str, str]:
        """Return where in the text the failed examples are and, with `find_operation`, the first non-finite operation.

        The result is the same on all ranks.
        """
        index, examples, operation = math.inf, "", ""
        if self.failure is not None:
            index, failed_examples, batch = self.failure
            examples = self.task.describe_examples(self.corpus, failed_examples)
            if find_operation:
                self.model.eval()
                with no_grad():
                    operation = first_anomaly(lambda: self.loss(batch)) or NO_OPERATION
                self.model.train()
        _, examples, operation = min(npx.distributed.world().all_gather_object((index, examples, operation)))
        return examples, operation


def patience_warning(settings: TrainSection) -> str:
    """Return a warning if training is too short for train.patience to stop it, otherwise ""."""
    earliest = (settings.patience + 1) * settings.validate_every  # the first validation is the best so far
    if not settings.patience or earliest < settings.max_steps:
        return ""
    return (
        f"warning: train.patience = {settings.patience:,} cannot stop this training of "
        f"{plural(settings.max_steps, 'step')}, "
        f"because it needs validations up to step {earliest:,}; try a smaller train.validate_every"
    )


def merge_records(parts: list[Any]) -> Any:
    """Merge the evaluation records (lists or dictionaries) of all ranks."""
    if isinstance(parts[0], dict):
        return {key: value for part in parts for key, value in part.items()}
    return [record for part in parts for record in part]


def perplexity(
    run: str | Path,
    source: str | Path,
    references: str | Path,
    progress: bool = False,
    on_warning: Callable[[str], object] = warnings.warn,
) -> dict[str, Any]:
    """Compute a model's perplexity on references given their sources, and return it as a row of a score report.

    Perplexity is exp(mean loss). As in the paper, the mean is over the subwords and the end of each sentence, without
    smoothing. Perplexity depends on the vocabulary, which the signature identifies. Pairs with an empty side or a side
    over data.max_length are left out and counted. `progress` shows progress on standard error; for `on_warning`, see
    `load_model`. Raises UserError for unreadable or invalid files and for a model of another task.
    """
    files = (str(source), str(references))
    result, corpus, tokenizer = measure_files(run, "translation", files, progress, on_warning)
    n_targets = int(corpus.tgt_lengths.sum())
    pairs = corpus.meta["pairs"]
    left_out = f"|left out:{pairs['read'] - pairs['kept']}" if pairs["read"] > pairs["kept"] else ""
    return {
        "name": "perplexity", "score": result["perplexity"],
        "use": "per subword, ends of sentences included; lower is better; as in Table 3",
        "signature": f"pieces:{n_targets}|types:{tokenizer.vocab_size}|tokenizer:{tokenizer.digest[:12]}{left_out}",
    }  # fmt: skip


def text_loss(
    run: str | Path, text: str | Path, progress: bool = False, on_warning: Callable[[str], object] = warnings.warn
) -> dict[str, float]:
    """Return the loss of a language model on a text, as training measures it on the validation text.

    The keys are loss (mean, in nats per token), perplexity, bits_per_character, tokens and characters. Only
    bits_per_character is comparable between vocabularies. tokens and characters count all except the first token, which
    is not predicted. For the other arguments and errors, see `perplexity`.
    """
    result, corpus, tokenizer = measure_files(run, "language", (str(text),), progress, on_warning)
    if n_unknown := int((corpus.tokens == tokenizer.special_ids.unk_id).sum()):
        unknown = f"{plural(n_unknown, 'character')} outside the vocabulary"
        on_warning(f"{text}: {unknown}; bits per character are not comparable with those of other vocabularies")
    loss = result["loss"]
    n_tokens = corpus.n_targets
    n_characters = corpus.meta["characters"] - len(tokenizer.decode(corpus.tokens[:1]) or "?")  # "?": unknown
    return {
        "loss": loss, "perplexity": result["perplexity"],
        "bits_per_character": loss * n_tokens / n_characters / math.log(2), "tokens": n_tokens,
        "characters": n_characters,
    }  # fmt: skip


def measure_files(
    run: str | Path, task_name: str, files: Sequence[str], progress: bool, on_warning: Callable[[str], object]
) -> tuple[dict[str, float], Any, Any]:
    """Validate a model on text files, without BLEU; return the result, the corpus and the tokenizer.

    Raises FloatingPointError if the loss is NaN or infinite.
    """
    model, tokenizer, config = load_model(run, task_name, on_warning)
    task = TASKS[task_name]
    with tempfile.TemporaryDirectory() as folder, Display(progress) as display:
        corpus = task.prepare(files, tokenizer, Path(folder), config.data.max_length)
        without_score = replace(config, train=replace(config.train, validate_score=False))
        result = Validator(task, model, tokenizer, corpus, without_score, display).measure(Signals())
    assert result is not None
    if not math.isfinite(result["loss"]):
        raise FloatingPointError(f"scoring: expected a finite loss; got {result['loss']}")
    return result, corpus, tokenizer
