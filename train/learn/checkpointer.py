"""Write the checkpoints of a training run when they are due, retry if the disk is full, and resume from them."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import npx
from npx.ranges import Range
from train.errors import UserError, one_line, plural
from train.files import WriteError, make_folder
from train.json_files import schema_error
from train.learn.optimizer import LossScale
from train.learn.schedule import SCHEDULE_KEYS, schedule_changes
from train.learn.text_checks import check_same_text
from train.learn.update import Updater
from train.run import checkpoint as store
from train.run.best_weights import best_folder_step, can_restore_best, forget_lost_best, restore_best
from train.run.config import RunConfig
from train.run.folder import RunFolder
from train.run.folder_swap import existing_folder
from train.run.pruning import prune, surplus_best
from train.run.report import RunReport
from train.run.state import COUNT, RunState
from train.run.storage import model_config, write_folder
from train.tasks import TASKS
from train.tasks.protocols import Corpus, TextTokenizer
from train.text.batches import BatchLoader

RETRY_SECONDS = 60  # seconds until a failed write of a checkpoint is retried
SCHEMA = {"adam_steps": COUNT, "run": dict}  # keys of state.json, in addition to storage.SCHEMA
OPTIONAL = {  # missing in files of earlier versions
    "loss_scale": LossScale.SCHEMA, "micro_batches": Range(int, "[1, 1e9]"), "learning_rate": dict,
    "best_metric": str,
}  # fmt: skip


class Checkpointer:
    """Writes and restores the checkpoints of a training run.

    All ranks call every method; rank 0 writes.

    Attributes:
        newest: the newest checkpoint.
        warnings: the warnings so far, such as one for each damaged checkpoint that was skipped.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        tokenizer: TextTokenizer,
        corpora: Mapping[str, Corpus],
        updater: Updater,
        report: RunReport,
    ) -> None:
        self.folder, self.config, self.tokenizer = folder, config, tokenizer
        self.digests = {part: corpus.digest for part, corpus in corpora.items()}  # SHA-256 of the text of each part
        self.updater, self.report = updater, report
        self.world = npx.distributed.world()
        # Micro-batches per update, over all ranks.
        self.micro_batches = config.train.gradient_accumulation_steps * self.world.size
        self.newest: Path | None = None
        self.newest_steps = 0, 0  # its step, and the last step of which it includes a validation
        self.newest_seconds = 0.0  # its RunState.seconds
        self.retry_time = math.inf  # time.monotonic() at which a failed write is retried
        self.warnings: list[str] = []

    @contextmanager
    def open_folder(self, state: RunState, is_complete: bool = False) -> Iterator[None]:
        """Lock the run folder for rank 0 during this block, and prepare it for a run that continues from `state`.

        A complete run does not continue: of its config.toml, only [data] can change, for example because texts were
        moved.
        """
        with ExitStack() as stack:
            with self.world.rank_zero_first():
                if self.world.rank == 0:
                    make_folder(self.folder.path)
                    self.lock = stack.enter_context(self.folder.lock("train"))
                    self.lock.check()
                    config = self.config
                    if is_complete and self.folder.config_file.exists():
                        config = replace(self.folder.load_config(), data=config.data)
                    self.folder.prepare(config, self.tokenizer)
                    self.warnings += restore_best(self.folder, state, self._best_metric, self._identity(state))
                    if removed := [path.name for path in surplus_best(self.folder, state)]:
                        keys = f"train.best_metric and train.keep_best = {config.train.keep_best}"
                        self.warnings.append(f"warning: {keys} do not keep {', '.join(removed)}; removing them")
                    # The program may have been killed just before pruning.
                    self.warnings += prune(self.folder, config.train.keep_last, state)
            yield

    # ---- writing

    def check_lock(self) -> None:
        """Raise UserError if another program may have locked the run folder."""
        if self.world.rank == 0:
            self.lock.check()

    def is_scheduled(self, state: RunState) -> bool:
        """Return whether a checkpoint is due after this step.

        train.checkpoint_minutes counts only time spent in updates, accumulated across interruptions.
        """
        settings = self.config.train
        if settings.checkpoint_minutes:
            return state.seconds - self.newest_seconds >= 60 * settings.checkpoint_minutes
        return state.step % settings.checkpoint_every == 0

    def stop_reason(self, state: RunState) -> str:
        """Return why this run has finished: "max_steps", "patience", or "" if resuming it would continue training."""
        settings = self.config.train
        if state.step >= settings.max_steps:
            return "max_steps"
        return "patience" if 0 < settings.patience <= state.stale_validations else ""

    def continue_advice(self, state: RunState) -> str:
        """Return the options with which a finished run continues (see `stop_reason`)."""
        settings = self.config.train
        options = []
        if state.step >= settings.max_steps:
            options.append(f"--set train.max_steps=N with N > {state.step:,}")
        if 0 < settings.patience <= state.stale_validations:
            options.append(f"--set train.patience=0 (or more than {state.stale_validations:,})")
        return " and ".join(options)

    def is_due(self, state: RunState) -> bool:
        """Return whether a checkpoint is due after this step: a scheduled one or, after a failed write, a retry."""
        if self.retry_time < math.inf:
            return self.world.broadcast_object(time.monotonic() > self.retry_time)
        return self.is_scheduled(state)

    def save(self, state: RunState, required: bool) -> None:
        """Write a checkpoint, unless the newest one is of this step and validation, or no update has been made.

        If that fails, raise WriteError for a `required` checkpoint, else schedule a retry.
        """
        steps = state.step, state.valid_step
        if steps == self.newest_steps:
            return
        weights = self.updater.weights()
        adam = self.updater.optimizer_state()
        try:
            with self.world.rank_zero_first():
                if self.world.rank == 0:
                    self.lock.check()
                    try:
                        self._write(state, weights, adam)
                        self._prune(state)
                    except WriteError:
                        self.lock.check()  # if the folder was moved, this error explains the failure
                        raise
            self.newest = self.folder.step_path(state.step)
            self.newest_steps, self.newest_seconds = steps, state.seconds
            self.retry_time = math.inf
        except WriteError as error:
            if required:
                raise
            self.retry_time = time.monotonic() + RETRY_SECONDS
            self.report.write_line(f"{error.problem}; training continues; the next attempt is in {RETRY_SECONDS} s")

    def save_best(self, state: RunState, *folders: Path) -> bool:
        """Write the weights to `folders`: best-N, checkpoints/best or both. If that fails, report it and return False.

        Folders best-N that are no longer in the ranking are removed.
        """
        weights = self.updater.weights()
        try:
            with self.world.rank_zero_first():
                if self.world.rank == 0:
                    self.lock.check()
                    for folder in folders:
                        write_folder(folder, {store.MODEL: weights}, self._identity(state))
                    self._prune(state)
        except WriteError as error:
            self.report.write_line(f"{error.problem}; training continues; the best weights are not saved")
            return False
        return True

    def _prune(self, state: RunState) -> None:
        """Remove the checkpoints that are no longer kept, and report only once that one cannot be removed."""
        for text in prune(self.folder, self.config.train.keep_last, state):
            if text not in self.warnings:
                self.warnings.append(text)
                self.report.write_line(text, always=True)

    def _identity(self, state: RunState) -> dict[str, Any]:
        """Return the keys of state.json that identify the weights."""
        return {
            "step": state.step,
            "task": self.config.data.task,
            "model": self.updater.model.config.to_dict(),
            "tokenizer_digest": self.tokenizer.digest,
            "text_sha256": self.digests["train"],
            "valid_sha256": self.digests.get("valid"),
            "config": self.config.fixed_keys(),
        }

    def _write(self, state: RunState, weights: Mapping[str, Any], adam: dict[str, Any]) -> None:
        self.report.sync()
        if self.newest and not existing_folder(self.newest).is_dir():
            self.report.write_line(
                f"warning: {self.newest} was moved or removed; training continues with a new checkpoint", always=True
            )
        content = self._identity(state) | {
            "extra": not (self.is_scheduled(state) or self.stop_reason(state)),
            "adam_steps": adam.pop("step"),
            "loss_scale": self.updater.loss_scale.state_dict(),
            "micro_batches": self.micro_batches,
            "learning_rate": {name: getattr(self.config.train, name) for name in SCHEDULE_KEYS},
            "best_metric": self._best_metric,
            "run": state.to_json(),
        }
        store.save_checkpoint(self.folder.path, content, weights, adam)

    @property
    def _best_metric(self) -> str:
        """The metric that selects checkpoints (see `_metric`)."""
        return self._metric(self.config.train.best_metric)

    def _metric(self, best_metric: str | None) -> str:
        """Return the metric that selects checkpoints; "" means the loss, for which no best checkpoint is kept."""
        return best_metric or TASKS[self.config.data.task].selection_metric

    # ---- resuming

    def restore(self) -> RunState:
        """Restore the newest undamaged checkpoint and return its state; without one, return a new state.

        Raises UserError if the checkpoint does not fit the model, tokenizer, text, configuration or number of ranks.
        """
        self.config = store.resumed_config(self.folder, self.config)
        newest = store.load_newest(self.folder, self.warnings.append)
        if newest is None:
            self.warnings.append(f"{self.folder.path}: there is no checkpoint, so training starts at step 1")
            return RunState()
        path, checkpoint = newest
        self._check_identity(path, checkpoint.state)
        try:
            state = self._load(checkpoint)
        except (KeyError, TypeError, ValueError) as error:
            raise foreign_error(path, one_line(error)) from None
        self.newest, self.newest_steps, self.newest_seconds = path, (state.step, state.valid_step), state.seconds
        self.micro_batches = checkpoint.state.get("micro_batches", self.config.train.gradient_accumulation_steps)
        self.warnings += schedule_changes(checkpoint.state, self.config.train, self.updater.model.config.d_model)
        return state

    def _update_metric(self, content: Mapping[str, Any], state: RunState) -> None:
        """If train.best_metric differs from that of the checkpoint, adapt the selection in `state` and warn.

        The values of the new metric are read from metrics.jsonl. checkpoints/best stays until a validation is better.
        """
        config_values = content.get("config")  # where earlier versions stored the metric
        former_metric = config_values.get("train.best_metric") if isinstance(config_values, dict) else None
        previous = content.get("best_metric", self._metric(former_metric))
        metric = self._best_metric
        if metric == previous or not state.valid_step:
            return
        name = metric or "loss"
        is_loss = metric in ("", "loss")
        measured = {
            str(entry["step"]): [float(entry["loss"]), None if is_loss else float(entry[name])]
            for entry in self.folder.metrics()
            if entry["kind"] == "valid" and all(isinstance(entry.get(key), int | float) for key in ("loss", name))
        }
        # While no metric was set, best_step followed the loss, but checkpoints/best was not replaced.
        if 0 < (kept := best_folder_step(self.folder)) <= state.valid_step:
            state.best_step = kept
        best = measured.get(str(state.best_step)) if can_restore_best(self.folder, state.best_step) else None
        state.stale_validations = 0
        state.best_loss, state.best_score = best or (None, None)
        state.ranking = {step: measured[step] for step in state.ranking.keys() & measured}
        effect = "the next validation counts as the best so far"
        if not metric:
            name = "unset"
            effect = "checkpoints/best is not replaced any more, but commands load it until you delete it"
        elif best is not None:
            value = f"{name} {best[0 if is_loss else 1]:.4g}"
            effect = f"checkpoints/best keeps step {state.best_step:,}, {value}, until a validation is better"
        self.warnings.append(
            f"warning: train.best_metric is now {name} instead of {previous or 'unset'}: {effect}; the count for "
            "train.patience restarts here"
        )

    def check_position(self, state: RunState, loader: BatchLoader) -> None:
        """Check the restored `state` against the batches of `loader`.

        Raises UserError if the batch of `state` does not exist in its epoch, or if no update has an example for every
        rank. Warns if there are more ranks than micro-batches.
        """
        if self.newest is None:
            return
        batches = loader.epoch_batches(state.epoch)
        if state.index >= len(batches):
            raise foreign_error(self.newest, f"run.index: expected a batch of epoch {state.epoch}; got {state.index}")
        n = self.micro_batches
        ranks = self.world.size
        if n >= ranks:
            return
        max_ranks = n * max(map(len, batches))
        if max_ranks < ranks:
            raise UserError(
                f"resume: expected at most {max_ranks} ranks, one for each example in the largest update of "
                f"{self.newest}; got {ranks}; try mpirun -n {max_ranks}"
            )
        self.warnings.append(
            f"only {plural(n, 'micro-batch', 'micro-batches')} per update for {ranks} ranks; each part of a split "
            "micro-batch has its own dropout masks"
        )

    def _check_identity(self, path: Path, content: Mapping[str, Any]) -> None:
        store.check_tokenizer(self.tokenizer, content, self.folder.tokenizer_file)
        saved = model_config(content).to_dict()
        for key, value in self.updater.model.config.to_dict().items():
            if value != saved[key]:
                raise UserError(
                    f"resume: model.{key}: expected {saved[key]!r} as in {path}; got {value!r}; "
                    f"try the run's own configuration, or another --out"
                )
        # A task without files has no digests.
        check_same_text(path, content, {part: (digests or {}).values() for part, digests in self.digests.items()})
        if valid := content.get("valid_sha256"):  # a run without its validation text keeps the stored hash
            self.digests = {"valid": valid} | self.digests

    def _load(self, checkpoint: store.Checkpoint) -> RunState:
        content = checkpoint.state
        if problem := schema_error(content, SCHEMA | {key: OPTIONAL[key] for key in OPTIONAL if key in content}):
            raise ValueError(problem)
        state = RunState.read(content.get("run"), content["step"])
        if state.step < self.config.train.max_steps:
            self._update_metric(content, state)
        if not self.stop_reason(state):  # a finished run keeps all its best checkpoints
            keep_best = self.config.train.keep_best  # may have changed since the checkpoint was written
            self.warnings += forget_lost_best(self.folder, state, self._best_metric)
            # The ranking is empty if keep_best was 1.
            if state.best_loss is not None and can_restore_best(self.folder, state.best_step):
                state.ranking |= {str(state.best_step): [state.best_loss, state.best_score]}
            by_loss = self._best_metric in ("", "loss")
            state.sort_ranking(by_loss, keep_best if keep_best > 1 else 0)
        self.updater.load_optimizer_state({**checkpoint.optimizer_arrays, "step": content["adam_steps"]})
        if "loss_scale" in content:
            self.updater.loss_scale.load_state_dict(content["loss_scale"])
        trained = checkpoint.optimizer_arrays["weights"] if self.updater.average is not None else None
        self.updater.load_weights(checkpoint.weights, trained)
        return state


def foreign_error(path: Path, problem: str) -> UserError:
    """Return the error for a checkpoint whose content does not fit this run."""
    return UserError(
        f"{path}: this checkpoint does not fit its run ({problem}); try moving it away, to resume from an earlier one"
    )
