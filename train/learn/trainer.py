"""The training loop: updates, validation, early stopping and checkpoints.

All random numbers are derived from known values: dropout from (seed, step), the order of batches from (seed, epoch),
the initialization from the seed. Weights, Adam's moments, the loss scale and RunState are therefore a complete
checkpoint. Resuming is bitwise exact on the same kind of machine with the same libraries and number of threads.
"""

import math
import time
from collections.abc import Mapping
from copy import copy
from pathlib import Path

import npx
from train.errors import UserError, plural
from train.files import THEN_RESUME, disk_errors
from train.learn.checkpointer import Checkpointer
from train.learn.parallel.plan import WorkShare, plan_update
from train.learn.parallel.sync import UpdateSync
from train.learn.schedule import Schedule
from train.learn.signals import Signals
from train.learn.update import Updater
from train.learn.validation import Validator, patience_warning
from train.run.config import RunConfig
from train.run.folder import RunFolder
from train.run.folder_swap import existing_folder
from train.run.report import RunReport, SilentReport, nonfinite_origin, vocabulary_sizes
from train.run.state import RunState, TrainingSummary
from train.tasks import TASKS
from train.tasks.protocols import Batch, Corpus, TextTokenizer, TrainableModel
from train.text.batches import BatchLoader, Position

UPDATE_TIMEOUT_FACTOR = 10  # time limit of an update: train.rank_timeout plus this many times the longest update so far


class Trainer:
    """Trains a model in a run folder: config.toml, tokenizer.json, checkpoints, metrics.jsonl, log.txt.

    An update consists of `gradient_accumulation_steps` micro-batches. Each contributes the gradient of its summed loss,
    divided by the number of target tokens (not padding) in the update. Together, they have the same gradient as one
    batch with all these examples. Then the gradient is clipped, and Adam updates the weights with the learning rate of
    the step (section 5 of the paper).

    With several ranks (npx.distributed) each rank has a Trainer and computes its share of the micro-batches. Decisions
    depend only on values that all ranks have, so all ranks make the same decisions. Only rank 0 writes files.

    Args:
        model: the model to train. Its parameters are moved into a flat buffer.
        config: the configuration of the run.
        tokenizer: the tokenizer of the corpora, saved with the run.
        corpora: the prepared text, "train" and optionally "valid".
        run_dir: the run folder. Nothing is written before `run`.
        resume: whether to continue from the newest undamaged checkpoint of `run_dir` (without one, from the start).
        progress: whether to show progress on standard error.
        deadline: a time.monotonic() value before which training stops.
        debug: "anomaly" reports the first operation that produced a NaN or infinity.

    Raises UserError if `run_dir` has checkpoints and `resume` is False, or if its checkpoint belongs to another model,
    tokenizer, training text or configuration.
    """

    def __init__(
        self,
        model: TrainableModel,
        config: RunConfig,
        tokenizer: TextTokenizer,
        corpora: Mapping[str, Corpus],
        run_dir: str | Path,
        resume: bool = False,
        progress: bool = True,
        deadline: float | None = None,
        debug: str = "",
    ) -> None:
        folder, settings, task = RunFolder(run_dir), config.train, TASKS[config.data.task]
        if not resume and (folder.step_paths() or folder.weights_only_paths()):
            raise folder.wrong_folder_error()
        self.model, self.config, self.corpora, self.task = model, config, corpora, task
        self.deadline, self.debug = deadline, debug
        self.world = npx.distributed.world()
        self.signals = Signals(single_process=self.world.size == 1)
        report = SilentReport if self.world.rank else RunReport
        self.report = report(folder, settings.max_steps, progress, settings.csv, settings.tensorboard)
        self.sync = UpdateSync(self.world, self.signals, self.report)
        self.schedule = Schedule(settings, model.config.d_model)
        self.updater = Updater(task, model, settings, self.report, self._prefetch_batches)
        self.validator: Validator | None = None
        if (valid := corpora.get("valid")) is not None:
            self.validator = Validator(task, model, tokenizer, valid, config, self.report.display)
        self.checkpointer = Checkpointer(folder, config, tokenizer, corpora, self.updater, self.report)
        self.state = self.checkpointer.restore() if resume else RunState()
        self.loader = BatchLoader(task.training_batches(corpora["train"], config, tokenizer, self.state.batch_order))
        self.checkpointer.check_position(self.state, self.loader)
        self.longest_update = self.longest_validation = 0.0  # seconds
        self.lr = self.norm = math.nan  # learning rate and gradient norm of the last update

    def run(self) -> TrainingSummary:
        """Train to train.max_steps, or until early stopping or the deadline, and return a summary.

        After Ctrl-C or SIGTERM the current step is completed, a checkpoint is written and KeyboardInterrupt is raised;
        a second signal raises it at once. If a checkpoint cannot be written, the write is retried later.

        Raises UserError if a loss or gradient was not finite in more than train.max_skipped_updates updates in a row,
        if memory ran out, if the last checkpoint cannot be written, or if another program holds the lock on the folder.
        """
        npx.configure_process()
        with self.world.rank_zero_first():
            result = self._recorded_result() if self.world.rank == 0 else None
        result = self.world.broadcast_object(result)
        is_complete = result is not None
        folder = str(self.checkpointer.folder.path)
        with disk_errors(folder, THEN_RESUME), self.checkpointer.open_folder(self.state, is_complete):
            n_overflows = self.updater.loss_scale.skipped
            if result is not None:
                self.report.update_files(self.state, n_overflows)
                return self._confirm_end(result)
            validates = self._is_validation_due() or bool(self.checkpointer.stop_reason(self.state))
            with self.report.open_files(self.state, n_overflows, validates), self.signals.handling():
                return self._loop()

    def _loop(self) -> TrainingSummary:
        self._log_start()
        self.model.train()
        self._validate_if_due()  # the previous run stopped before or during this validation
        while not (reason := self._stop_reason()):
            if self._run_update():
                self._after_update()
        self.checkpointer.save(self.state, required=True)
        if reason == "signal":
            raise self._report_stop()
        return self._finish(reason)

    # ---- one update

    def _run_update(self) -> bool:
        """Perform one update. Return False if a non-finite loss or gradient caused the update to be skipped."""
        self.sync.begin()
        state = self.state
        step = state.step + 1
        positions, tokens, share = self._plan()
        batches = [self.loader.batch(positions[index]) for index in share.indices]
        last_position = positions[-1]
        state.logged_epoch = last_position[0] + 1
        state.epoch, state.index = self.loader.next_position(last_position)
        self.world.step = step
        limit = self.config.train.rank_timeout + UPDATE_TIMEOUT_FACTOR * self.longest_update
        self.world.collective_timeout = limit if self.longest_update else None
        loss, norm = self.updater.compute_gradient(batches, step, share)
        self.world.collective_timeout = None
        is_finite = math.isfinite(loss) and math.isfinite(norm)
        if is_finite:
            self.lr = self.schedule(step)
            self.norm = norm
            self.updater.apply_gradient(self.lr, norm)
        seconds, network = self.sync.end()
        state.add_time(seconds, network)
        self.longest_update = max(self.longest_update, seconds)
        if is_finite:
            state.add_update(loss, share.n_targets, tokens)
            self.report.advance(state)
        elif self.updater.loss_scale.reduce_after_overflow():
            self.report.log_overflow(step, self.updater.loss_scale.value, self.updater.loss_scale.skipped)
        else:
            quantity, value = ("gradient norm", norm) if math.isfinite(loss) else ("loss", loss)
            self._skip(step, quantity, value, *self._locate_nonfinite(batches, positions, share))
        return is_finite

    def _plan(self) -> tuple[list[Position], int, WorkShare]:
        """Plan the next update: the positions of its micro-batches, the number of tokens, and this rank's share."""
        position = self.state.epoch, self.state.index
        return plan_update(self.loader, position, self.checkpointer.micro_batches, self.world)

    def _prefetch_batches(self) -> None:
        """Build this rank's batches of the next update while the device computes the current gradient."""
        positions, _, share = self._plan()
        self.loader.prefetch([positions[index] for index in share.indices])

    def _locate_nonfinite(self, batches: list[Batch], positions: list[Position], share: WorkShare) -> tuple[str, str]:
        """Return the examples of the non-finite micro-batches and, with --debug, the first non-finite operation."""
        indices, operation = self.updater.locate_nonfinite(batches, self.state.step + 1, bool(self.debug), share)
        examples = (self.loader.examples(positions[index]) for index in indices)
        places = [self.task.describe_examples(self.corpora["train"], batch) for batch in examples]
        return "; ".join(places), operation

    def _skip(self, step: int, quantity: str, value: float, examples: str, operation: str) -> None:
        """Record a skipped update. Raises UserError if more than train.max_skipped_updates were skipped in a row."""
        state, max_skipped_updates = self.state, self.config.train.max_skipped_updates
        state.add_skipped()
        self.report.log_skipped(state, step, quantity, value, examples, operation, max_skipped_updates)
        if state.consecutive_skipped > max_skipped_updates:
            updates = f" ({plural(state.consecutive_skipped, 'update')} in a row)"
            raise self._nonfinite_error(step, quantity, value, updates + nonfinite_origin(examples, operation))

    def _nonfinite_error(self, step: int, quantity: str, value: float, details: str) -> UserError:
        newest = self.checkpointer.newest
        message = (
            f"training, step {step:,}: expected a finite {quantity}; got {value}{details}; "
            f"{f'the last checkpoint is {newest}' if newest else 'there is no checkpoint yet'}; "
            f"try {self.schedule.remedies(self.state.step)}"
            f"{'' if self.debug else '; --debug anomaly names the operation'}"
        )
        self.report.log_line(message)  # the command shows the error
        return UserError(message)

    # ---- between updates

    def _after_update(self) -> None:
        """Log, validate and write a checkpoint when each is due. `_loop` writes the last checkpoint."""
        state = self.state
        self.checkpointer.check_lock()
        is_logged = state.step % self.config.train.log_every == 0
        if is_logged or state.step >= self.config.train.max_steps:
            scale = self.updater.loss_scale.value if self.updater.loss_scale.dynamic else None
            self.report.log_update(state, self.lr, self.norm, scale, self.world.size)
            n_outputs = self.model.config.resolved_n_outputs
            self.report.warn_of_divergence(state.loss, math.log(n_outputs), self.schedule.remedies(state.step - 1))
        if is_logged:  # unlogged updates are included in the next log line, even of a resumed run
            state.reset_window()
        self._validate_if_due()
        if not self._stop_reason() and self.checkpointer.is_due(state):
            self.checkpointer.save(state, required=False)

    def _report_stop(self) -> KeyboardInterrupt:
        """Report that a signal has stopped the training, and return the exception to raise."""
        newest = self.checkpointer.newest
        saved = f"the newest checkpoint is {newest}" if newest else "there is no checkpoint"
        message = f"stopped by a signal after step {self.state.step:,}; {saved}"
        self.report.write_line(message, always=True)
        return KeyboardInterrupt(message)

    def _is_validation_due(self) -> bool:
        step, every = self.state.step, self.config.train.validate_every
        return self.validator is not None and self.state.valid_step < step and step % every == 0

    def _validate_if_due(self) -> None:
        """If a validation is due and there is time for it, validate, record the result, and save the best weights.

        A validation that a signal interrupts is repeated on resuming.
        """
        if not self._is_validation_due() or (reason := self._stop_reason()) in ("signal", "max_hours"):
            return
        if self.deadline is not None and (reason or not self.longest_validation):  # it may end after the deadline
            self.checkpointer.save(self.state, required=False)
        if result := self._run_validation():
            self.report.log_validation(self.state, result, self.task.scores)
            self._record_validation(result)

    def _record_validation(self, result: Mapping[str, float]) -> None:
        """Record a validation for early stopping, and save the weights if it is one of the best."""
        state, settings, folder = self.state, self.config.train, self.checkpointer.folder
        metric = settings.best_metric or self.task.selection_metric
        value = result.get(metric)
        previous_state = copy(state)
        is_best = state.add_validation(result["loss"], score := None if metric == "loss" else value)
        if value is None:  # there is no metric
            return
        is_ranked = settings.keep_best > 1 and state.insert_into_ranking(result["loss"], score, settings.keep_best)
        if is_best or is_ranked:
            # Write a checkpoint first: a folder with best weights but no checkpoint is then known to be damaged.
            if self.checkpointer.newest is None:
                self.checkpointer.save(previous_state, required=False)
            targets = {folder.ranked_path(state.step): is_ranked, folder.best_path: is_best}
            if not self.checkpointer.save_best(state, *(path for path, is_wanted in targets.items() if is_wanted)):
                state.restore_best(previous_state)

    def _run_validation(self) -> dict[str, float] | None:
        """Return the result of a validation, or None after a signal. Raises UserError for a non-finite loss."""
        assert self.validator is not None
        start = time.monotonic()
        with self.updater.use_average():
            result = self.validator.measure(self.signals)
            if result is not None and not math.isfinite(result["loss"]):
                origin = nonfinite_origin(*self.validator.locate_nonfinite(bool(self.debug)))
                raise self._nonfinite_error(self.state.step, "validation loss", result["loss"], origin)
        self.longest_validation = max(self.longest_validation, time.monotonic() - start)
        return result

    # ---- start and end

    def _log_start(self) -> None:
        state, settings = self.state, self.config.train
        ranks = self.world.size
        frozen = f" ({n:,} of them frozen)" if (n := self.model.n_parameters() - self.updater.flat.size) else ""
        dropout = f", BPE dropout {settings.bpe_dropout:g}" if settings.bpe_dropout else ""
        initial = f", weights of {settings.init}" if settings.init and not state.step else ""
        sizes = vocabulary_sizes(self.checkpointer.tokenizer, self.config.data)
        batches = plural(len(self.loader.epoch_batches(state.epoch)), "batch", "batches")
        setup = (
            f"{self.model.n_parameters():,} parameters{frozen}, {sizes}, "
            f"{batches} in epoch {state.epoch + 1} of at most {settings.batch_tokens:,} tokens"
            f"{' per side' if len(self.task.sides) > 1 else ''}, {self.checkpointer.micro_batches} per update"
            f"{f' on {ranks} ranks' if ranks > 1 else ''}, seed {settings.seed}{dropout}{initial}"
        )
        self.report.log_start(state, self.checkpointer.newest, self.corpora, self.checkpointer.warnings, setup)
        self.report.write_line(self.schedule.describe())
        if settings.ema_decay:
            self.report.write_line(
                "validations and checkpoints use the moving average of the weights "
                f"(train.ema_decay = {settings.ema_decay:g})"
            )
        if warning := self.schedule.warning(state.step):
            self.report.write_line(warning, always=True)
        if warning := patience_warning(settings):
            self.report.write_line(warning)

    def _stop_reason(self) -> str:
        """Return "signal", "max_steps", "patience", "max_hours" (too late for another update), or "" to continue.

        If a validation is due, "max_hours" means that it is too late for it. Collective: all ranks call it together.
        """
        if self.signals.stop_requested:
            return "signal"
        reason = self.checkpointer.stop_reason(self.state)
        if reason or self.deadline is None:
            return reason
        seconds = self.longest_validation if self._is_validation_due() else self.longest_update
        return "max_hours" if any(self.world.all_gather_object(time.monotonic() + seconds > self.deadline)) else ""

    def _finish(self, reason: str) -> TrainingSummary:
        """Validate the last step if it has not been validated, report the end of the run, and return its summary."""
        state = self.state
        result: dict[str, float] = {}
        if self.validator is not None and reason != "max_hours":
            previous = self.validator.last_result if state.valid_step == state.step else None
            result = previous or self._run_validation() or {}
            if not result:
                raise self._report_stop()
            if state.valid_step < state.step:
                self.report.log_validation(state, result, self.task.scores)
                self._report_unsaved_best(result)
        if reason == "patience":
            metric = self.config.train.best_metric or self.task.selection_metric or "loss"
            self.report.write_line(
                f"early stopping: {plural(state.stale_validations, 'validation')} without a better {metric} than after "
                f"step {state.best_step:,}; to continue, try --resume {self.checkpointer.continue_advice(state)}"
            )
        self.report.log_end(state, reason, self.checkpointer.newest, self.world.size)
        return self._summarize(reason, result)

    def _report_unsaved_best(self, result: Mapping[str, float]) -> None:
        """Log a line if checkpoints/best is missing, or if the last weights are better than the weights in it.

        Best weights are saved only at multiples of train.validate_every. Until then, commands load the newest weights.
        """
        state, settings = self.state, self.config.train
        metric = settings.best_metric or self.task.selection_metric
        value = result.get(metric)
        if value is None:
            return
        line = ""
        if not existing_folder(self.checkpointer.folder.best_path).is_dir():
            every = settings.validate_every
            line = (
                f"checkpoints/best is missing, because only validations at multiples of train.validate_every = "
                f"{every:,} count; try a smaller train.validate_every, or --resume until step "
                f"{(state.step // every + 1) * every:,}"
            )
        elif copy(state).add_validation(result["loss"], value if metric != "loss" else None):
            line = (
                f"the validation after step {state.step:,} has the best {metric}, but checkpoints/best keeps step "
                f"{state.best_step:,}: only multiples of train.validate_every count; to use step {state.step:,}, name "
                f"{self.checkpointer.newest} instead of the run"
            )
        if line:
            self.report.write_line(line, always=True)

    def _recorded_result(self) -> dict[str, float] | None:
        """Return the final validation of a run with nothing left to do ({} if it has none), or None for other runs."""
        state = self.state
        is_final = bool(self.checkpointer.stop_reason(state))
        if self.checkpointer.newest is None or self._is_validation_due() or not is_final:
            return None
        if state.step > self.config.train.max_steps or self.validator is None:
            return {}
        entries = (entry for entry in self.checkpointer.folder.metrics() if entry["step"] == state.step)
        return next((e for e in entries if e["kind"] == "valid" and isinstance(e.get("loss"), int | float)), None)

    def _confirm_end(self, result: Mapping[str, float]) -> TrainingSummary:
        """Report that a resumed run has nothing left to do, and return its summary."""
        state, settings = self.state, self.config.train
        reason = self.checkpointer.stop_reason(state)
        for text in self.checkpointer.warnings:
            self.report.show(text, always=True)
        end = f"{'stopped early' if reason == 'patience' else 'ended'} after step {state.step:,}"
        if state.step > settings.max_steps:  # a signal may have stopped the run
            end = f"step {state.step:,} is beyond train.max_steps = {settings.max_steps:,}"
        elif state.step < settings.max_steps:
            end += f" of {settings.max_steps:,}"
        folder = self.checkpointer.folder
        end += f"; to continue, try {self.checkpointer.continue_advice(state)}"
        if changed := self.config.changed_keys(folder.load_config()):
            end += f"; config.toml keeps its {' and '.join(changed)}"
        self.report.show(f"{folder.path}: nothing left to do: {end}", always=True)
        return self._summarize(reason, result)

    def _summarize(self, reason: str, result: Mapping[str, float]) -> TrainingSummary:
        """Return the summary of a run that ends for `reason` with the validation `result`."""
        state, newest = self.state, self.checkpointer.newest
        scores = {name: result[name] for name in self.task.scores if name in result}
        figures = result.get("loss"), result.get("perplexity"), state.best_loss, state.best_step
        return TrainingSummary(state.step, reason, newest, state.tokens, state.seconds, *figures, scores)
