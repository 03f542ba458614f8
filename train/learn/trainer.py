"""The training loop: from a run's configuration to checkpoints, metrics and a log, stopped and resumed without a trace.

Nothing random is hidden: dropout is keyed by (seed, step), the order of batches by (seed, epoch), the first weights by
the seed. So weights, Adam's moments, the loss scale and the numbers in RunState are all that a checkpoint has to hold.
(Bit for bit: on the same kind of machine, with the same libraries and number of threads.)
"""

import math
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import npx
from npx.ranges import Range
from train.errors import UserError, one_line
from train.files import RESUME, WriteError, disk_errors, schema_error
from train.learn.anomaly import made_from
from train.learn.optimizer import LossScale, NoamSchedule
from train.learn.parallel.plan import planned
from train.learn.parallel.sync import UpdateSync
from train.learn.signals import Signals
from train.learn.update import Update
from train.learn.validation import Validation
from train.run import checkpoint as store
from train.run.config import RunConfig
from train.run.folder import RunFolder
from train.run.report import Notes, RunReport, Silent, clock
from train.run.state import COUNT, RunState, Summary
from train.tasks import TASKS
from train.text.batches import Position, Stream

RETRY = 60  # seconds until a checkpoint that could not be written is tried again
SLOW = 10  # updates: so much longer than the others, beside train.rank_timeout, a rank may take for one
SCHEMA = {"adam_steps": COUNT, "run": dict}  # of state.json, beside what every checkpoint has
MAY_LACK = {"loss_scale": LossScale.SCHEMA, "micro_batches": Range(int, "[1, 1e9]")}  # as earlier ones do


class Trainer:
    """Trains a model and keeps its run folder: checkpoints, metrics.jsonl, log.txt, config.toml, tokenizer.json.

    One update takes `accumulate` micro-batches. With n their target tokens, padding not counted, each adds the gradient
    of its summed loss / n, so that k micro-batches are one batch of their union; then clipping, then Adam with the
    schedule's rate of this step (section 5).

    `corpora` is the prepared text, "train" and perhaps "valid". `resume` goes on from the newest checkpoint of
    `run_dir`, or from the start where there is none yet. Raises UserError where `run_dir` has checkpoints and `resume`
    is False, and for a checkpoint of another model, tokenizer, training text or configuration; a damaged one is passed
    over. `deadline` (by time.monotonic) is when it stops at the latest; `debug` "anomaly" names the operation that
    first made a number which is not finite. Nothing is written before `run`.

    Of several ranks (npx.distributed) each has a Trainer, and all do the same, but that each computes its share of the
    micro-batches. What is decided is decided by what all have found, so that it is alike. Rank 0 alone writes.
    """

    def __init__(
        self,
        model: Any,
        config: RunConfig,
        tokenizer: Any,
        corpora: Mapping[str, Any],
        run_dir: str | Path,
        resume: bool = False,
        progress: bool = True,
        deadline: float | None = None,
        debug: str = "",
    ) -> None:
        self.model, self.config, self.tokenizer, self.corpora = model, config, tokenizer, corpora
        self.folder, self.task, t = RunFolder(run_dir), TASKS[config.data.task], config.train
        self.schedule = NoamSchedule(model.config.d_model, t.warmup_steps, t.lr_scale)
        self.world = npx.distributed.world()
        self.state, self.signals = RunState(), Signals(alone=self.world.size == 1)
        self.deadline, self.debug = deadline, debug
        self.micro_batches = t.accumulate * self.world.size  # an update, of all ranks together
        self.saved: Path | None = None  # the newest checkpoint,
        self.saved_seconds = 0.0  # and RunState.seconds there
        self.try_again = math.inf  # when, where one could not be written
        self.longest = 0.0  # seconds of an update, at most
        self.report = (Silent if self.world.rank else RunReport)(self.folder, t.max_steps, progress)
        notes = Notes()  # what this rank alone has to say, if it is not the one that writes
        self.agreement = UpdateSync(self.world, self.signals, notes, self.report)
        self.update = Update(self.task, model, t, notes if self.world.rank else self.report, self._prepare_batches)
        self.stream = Stream(self.task.batches(corpora["train"], t.batch_tokens, t.seed))
        valid = corpora.get("valid")
        self.validation = None if valid is None else Validation(self.task, model, tokenizer, valid, config)
        self.passed_over: list[str] = []  # what is told of damaged checkpoints
        if self.folder.steps() and not resume:
            raise self.folder.taken()
        if resume:
            store.check_same_config(self.folder, config)
            if found := store.newest_whole(self.folder, self.passed_over.append):
                self._load(*found)

    def run(self) -> Summary:
        """Trains to train.max_steps, or until patience ends, and tells how it went.

        Ctrl-C or SIGTERM: the step is finished, a checkpoint written, KeyboardInterrupt raised; a second one raises at
        once. Raises UserError where a loss or gradient is not finite for more than train.max_skipped updates in a row
        (none of them is made), where memory is full, where the last checkpoint cannot be written, and where another
        program owns the folder. An earlier checkpoint that cannot be written is tried again.
        """
        npx.configure_process()
        with disk_errors(str(self.folder.path), RESUME):
            with ExitStack() as stack:
                self._own(stack)
                with self.report.opened(self.state), self.signals.caught():
                    return self._loop()

    def _own(self, stack: ExitStack) -> None:
        """Makes the run folder rank 0's for as long as `stack` lasts, and puts it in order."""
        with self.world.first():
            if self.world.rank == 0:
                self.folder.path.mkdir(parents=True, exist_ok=True)
                self.own = stack.enter_context(self.folder.owned("train"))
                self.folder.complete(self.config, self.tokenizer)
                if not self.state.best_step:  # that of a run which was begun before
                    shutil.rmtree(self.folder.best, ignore_errors=True)
                store.prune(self.folder, self.config.train.keep_last)  # killed between a checkpoint and this

    def _loop(self) -> Summary:
        self._announce()
        self.model.train()
        if self._validation_due() and self._end() != "max_hours":  # stopped before or within it
            self._validate()
            if self._end():  # no update follows, whose checkpoint would tell of it
                self._save(needed=True)
        while not self._end():
            if self._update():
                self._after_update()
            elif self.signals.asked:
                raise KeyboardInterrupt
        return self._summary()

    # ---- one update

    def _update(self) -> bool:
        """One update; False where it was not finite, or beyond the range of fp16, and not made: it is no step then."""
        self.agreement.begin()
        s, step, scale = self.state, self.state.step + 1, self.update.scale
        places, tokens, share = planned(self.stream, (s.epoch, s.index), self.micro_batches, self.world)
        micro = [self.stream.batch(places[number]) for number in share.numbers]
        s.in_epoch, (s.epoch, s.index) = places[-1][0] + 1, self.stream.after(places[-1])
        self.world.step = step
        self.world.expect(self.config.train.rank_timeout + SLOW * self.longest if self.longest else None)
        loss, norm = self.update.gradient(micro, step, share)
        self.world.expect(None)
        good = math.isfinite(loss) and math.isfinite(norm)
        if good:
            self.lr, self.norm = self.schedule(step), norm
            self.update.apply(self.lr, norm)
        seconds, network = self.agreement.end()
        s.spent(seconds, network)
        self.longest = max(self.longest, seconds)
        if good:
            s.updated(loss, share.targets, tokens)
            self.report.advance(s)
        elif scale.overflowed():
            self.report.metrics({"kind": "skipped", "step": step, "loss_scale": scale.value, "skipped": scale.skipped})
            self.report.line(f"step {step}: beyond the range of fp16; update skipped, loss scale now {scale.value:g}")
        else:
            numbers, first = self.update.blame(micro, step, bool(self.debug), share)
            where = "; ".join(self._where(places[number]) for number in numbers)
            self._skip(step, where, first, *(("gradient norm", norm) if math.isfinite(loss) else ("loss", loss)))
        return good

    def _where(self, place: Position) -> str:
        return self.task.where(self.corpora["train"], self.stream.examples(place))

    def _skip(self, step: int, where: str, first: str, what: str, value: float) -> None:
        """Tells of an update that is not made; UserError where it is one too many."""
        s, most = self.state, self.config.train.max_skipped
        s.skip()
        entry = {"kind": "skipped", "step": step, "what": what, "in_a_row": s.skipped, "skipped": s.all_skipped}
        self.report.metrics(entry | {"examples": where} | ({"anomaly": first} if first else {}))
        made = made_from(where, first)
        if s.skipped > most:
            raise self._not_finite(step, what, value, f" ({s.skipped} update{'s' * (s.skipped > 1)} in a row){made}")
        self.report.line(
            f"step {step}: the {what} is {value}; update skipped, {s.skipped} in a row of at most {most} "
            f"(train.max_skipped){made}"
        )

    def _prepare_batches(self) -> None:
        """This rank's of the next update, while the device computes this one's gradient."""
        s = self.state
        places, _, share = planned(self.stream, (s.epoch, s.index), self.micro_batches, self.world)
        self.stream.prepare([places[number] for number in share.numbers])

    def _not_finite(self, step: int, what: str, value: float, more: str = "") -> UserError:
        kept = f"the last good checkpoint is {self.saved}" if self.saved else "there is no checkpoint before it"
        message = (
            f"training, step {step}: expected a finite {what}; got {value}{more}; nothing of it is kept, {kept}; "
            f"try a smaller train.lr_scale, a larger train.warmup_steps, or train.clip_norm=1.0"
            f"{'' if self.debug else '; --debug anomaly names the operation'}"
        )
        self.report.line(message)
        return UserError(message)

    # ---- between updates

    def _after_update(self) -> None:
        t, s, stop = self.config.train, self.state, self.signals
        if s.step % t.log_every == 0:
            self._log()
        if self._validation_due() and not stop.asked and self._end() != "max_hours":
            self._validate()
        last = stop.asked or self._end()
        again = self.try_again < math.inf and self.world.broadcast(time.monotonic() > self.try_again)
        if self._checkpoint_due() or last or again:
            self._save(needed=bool(last))
        if stop.asked:
            self.report.line(f"stopped by a signal after step {s.step}; {self.saved} is written; --resume goes on")
            raise KeyboardInterrupt

    def _checkpoint_due(self) -> bool:
        """By updates, or by the time that they took, which goes on over interruptions."""
        t, s = self.config.train, self.state
        if t.checkpoint_minutes:
            return s.seconds - self.saved_seconds >= 60 * t.checkpoint_minutes
        return s.step % t.checkpoint_every == 0

    def _log(self) -> None:
        s = self.state
        entry = {"kind": "train", "step": s.step, "epoch": s.in_epoch, "loss": s.loss, "lr": self.lr}
        entry |= {"gradient_norm": self.norm, "tokens": s.tokens, "tokens_per_second": round(s.speed, 1)}
        if self.update.scale.dynamic:
            entry["loss_scale"] = self.update.scale.value
        if self.world.size > 1:
            entry["network"] = round(s.window_network, 3)
        self.report.metrics(entry | {"seconds": round(s.seconds, 3)})
        self.report.line(
            f"step {s.step}/{self.config.train.max_steps}  epoch {s.in_epoch}  loss {s.loss:.4f}  lr {self.lr:.3g}  "
            f"{s.speed:,.0f} tokens/s{self._network(s.window_network, s.window_seconds)}  {self.report.time_left(s)}"
        )
        s.logged()

    def _network(self, seconds: float, of: float) -> str:
        return f", network {100 * seconds / max(of, 1e-9):.0f} %" if self.world.size > 1 else ""

    def _validation_due(self) -> bool:
        s = self.state
        return self.validation is not None and s.validated < s.step and s.step % self.config.train.validate_every == 0

    def _validate(self) -> None:
        """Validates and notes the result for early stopping; after a signal within, it is still due on resuming."""
        if result := self._measure():
            self._record(result)
            score = result.get(self.task.selection_metric)
            if self.state.judged(result["loss"], score) and score is not None:
                weights = self.update.weights()
                try:
                    with self.world.first():
                        if self.world.rank == 0:
                            self.own.check()
                            store.save_weights(self.folder.best, self._state(), weights)
                except WriteError as error:
                    self.report.line(f"{error.found}; training goes on, the best weights are not kept")

    def _measure(self) -> dict[str, float] | None:
        """What the validation gives; None after a signal."""
        assert self.validation is not None
        result = self.validation.measure(self.signals)
        if result is not None and not math.isfinite(result["loss"]):
            made = made_from(*self.validation.blame(bool(self.debug)))
            raise self._not_finite(self.state.step, "validation loss", result["loss"], made)
        return result

    def _record(self, result: dict[str, float]) -> None:
        s = self.state
        self.report.metrics({"kind": "valid", "step": s.step, "epoch": s.in_epoch, "tokens": s.tokens, **result})
        scores = "".join(f"  {self.task.scores[name]} {score:.2f}" for name, score in self._scores(result).items())
        self.report.line(
            f"validation after step {s.step}: loss {result['loss']:.4f}  perplexity {result['perplexity']:.2f}{scores}"
            f"  ({result['seconds']:.1f} s)"
        )

    def _scores(self, result: dict[str, float]) -> dict[str, float]:
        return {name: result[name] for name in self.task.scores if name in result}

    # ---- what is kept

    def _state(self) -> dict[str, Any]:
        """What every checkpoint says of its weights."""
        return {
            "step": self.state.step,
            "task": self.task.name,
            "model": self.model.config.to_dict(),
            "tokenizer_digest": self.tokenizer.digest,
        }

    def _save(self, needed: bool) -> None:
        """Writes a checkpoint. Where it cannot: UserError if it is `needed`, else the next try comes in a minute."""
        weights, adam = self.update.weights(), self.update.optimizer_state()
        try:
            with self.world.first():
                if self.world.rank == 0:
                    self.own.check()
                    self._write(weights, adam)
            self.saved, self.saved_seconds = self.folder.step(self.state.step), self.state.seconds
            self.try_again = math.inf
        except WriteError as error:
            if needed:
                raise
            self.try_again = time.monotonic() + RETRY
            self.report.line(f"{error.found}; training goes on, and tries again in {RETRY} s")

    def _write(self, weights: dict[str, Any], adam: dict[str, Any]) -> None:
        self.report.sync()
        state = self._state() | {
            "text_sha256": self.corpora["train"].digest,
            "config": self.config.frozen(),
            "extra": not self._checkpoint_due(),
            "adam_steps": adam.pop("step"),
            "loss_scale": self.update.scale.state_dict(),
            "micro_batches": self.micro_batches,
            "run": asdict(self.state),
        }
        keep = self.config.train.keep_last
        store.save_checkpoint(self.folder.path, state, weights, adam, keep)

    def _load(self, path: Path, checkpoint: store.Checkpoint) -> None:
        state, own = checkpoint.state, self.model.config.to_dict()
        store.check_tokenizer(self.tokenizer, state, self.folder.tokenizer_file)
        before = store.model_config(state).to_dict()
        for key in own:
            if own[key] != before[key]:
                raise UserError(
                    f"resume: model.{key}: expected {before[key]!r} as in {path}; got {own[key]!r}; "
                    f"try the run's own configuration, or another --out"
                )
        if state.get("text_sha256") != self.corpora["train"].digest:
            raise UserError(
                f"resume: expected the training text of {path}; got another (by SHA-256); try its files, or a new --out"
            )
        try:
            if wrong := schema_error(state, SCHEMA | {key: kind for key, kind in MAY_LACK.items() if key in state}):
                raise ValueError(wrong)
            self.state = RunState.read(state.get("run"), state["step"])
            if (place := self.state.index) >= len(self.stream.epoch(self.state.epoch)):
                raise ValueError(f"run.index: expected a batch of epoch {self.state.epoch}; got {place}")
            self.update.load_optimizer_state({**checkpoint.optimizer, "step": state["adam_steps"]})
            if "loss_scale" in state:  # earlier checkpoints have none
                self.update.scale.load_state_dict(state["loss_scale"])
            self.update.load_weights(checkpoint.model)
        except (KeyError, TypeError, ValueError) as error:
            found = one_line(error)
            raise UserError(f"{path}: expected a checkpoint of this run; got '{found}'; try an older one") from None
        self.saved, self.saved_seconds = path, self.state.seconds
        self.micro_batches = state.get("micro_batches", self.config.train.accumulate)
        if self.micro_batches < self.world.size:
            raise UserError(
                f"resume: expected at most {self.micro_batches} ranks, the micro-batches of an update of {path}; "
                f"got {self.world.size}; try mpirun -n {self.micro_batches}"
            )

    def _announce(self) -> None:
        s, t = self.state, self.config.train
        a_side = " a side" if len(self.task.sides) > 1 else ""
        steps = f"steps {s.step + 1} to {t.max_steps}" if s.step < t.max_steps else f"no step left to {t.max_steps}"
        ranks = f" on {self.world.size} ranks" if self.world.size > 1 else ""
        for text in self.passed_over:
            self.report.line(text, always=True)
        for name, part in (("training", "train"), ("validation", "valid")):
            if self.corpora.get(part) is not None:
                self.report.line(f"{name} text: {self.corpora[part].describe()}")
        self.report.line(
            f"{f'resuming from {self.saved}' if self.saved else 'training'}: {self.model.n_parameters():,} parameters, "
            f"{self.tokenizer.vocab_size:,} pieces, {len(self.stream.epoch(s.epoch)):,} batches an epoch of at most "
            f"{t.batch_tokens:,} tokens{a_side}, {self.micro_batches} an update{ranks}, {steps}, seed {t.seed}"
        )
        if self.saved and self.folder.averaged.is_dir():
            self.report.line("checkpoints/averaged stays, and is what is loaded, until `average` runs again")

    def _end(self) -> str:
        """Why training is over: "max_steps", "patience", "max_hours", or "" for not yet."""
        t, s = self.config.train, self.state
        if s.step >= t.max_steps or 0 < t.patience <= s.worse:
            return "max_steps" if s.step >= t.max_steps else "patience"
        late = self.deadline is not None and any(self.world.gather(time.monotonic() + self.longest > self.deadline))
        return "max_hours" if late else ""

    def _summary(self) -> Summary:
        """Ends the run; validates where the last step is none of validate_every, or where nothing was left to train."""
        s = self.state
        last: dict[str, float] = {}
        end = self._end()
        if self.validation is not None and end != "max_hours":
            known = self.validation.last if s.validated == s.step else None
            last = known or self._measure() or {}
            if not last:
                raise KeyboardInterrupt
            if s.validated < s.step:
                self._record(last)
        took = f"{clock(s.seconds)}{self._network(s.network, s.seconds)}: {self.saved or 'no checkpoint'}"
        self.report.line(f"done after step {s.step} ({end}), {s.tokens:,} tokens in {took}")
        figures = last.get("loss"), last.get("perplexity"), s.best_loss, s.best_step
        return Summary(s.step, end, self.saved, s.tokens, s.seconds, *figures, self._scores(last))
