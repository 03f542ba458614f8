"""The training loop: from a run's configuration to checkpoints, metrics and a log, stopped and resumed without a trace.

Nothing random is hidden: dropout is keyed by (seed, step), the order of batches by (seed, epoch), the first weights by
the seed. So weights, Adam's moments, the loss scale and the numbers in RunState are all that a checkpoint has to hold.
(Bit for bit: on the same kind of machine, with the same libraries and number of threads.) Read checkpoint.py next.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import npx
from autograd import no_grad
from models import Transformer
from models.search import greedy_search
from train import checkpoint as store
from train.config import RunConfig
from train.data import Batch, Batches, Corpus, Stream
from train.errors import UserError
from train.optim import NoamSchedule
from train.report import RunReport, clock, describe
from train.tokenizer import Tokenizer
from train.update import Update


@dataclass
class RunState:
    """What a run remembers beside weights and moments; saved as JSON, whose numbers come back bit for bit."""

    step: int = 0  # updates done
    epoch: int = 0  # of the next micro-batch, from 0
    index: int = 0  # of the next micro-batch within its epoch
    in_epoch: int = 0  # epoch of the last micro-batch, from 1, as people count
    tokens: int = 0  # trained on: source + target, without padding
    seconds: float = 0.0  # in updates; validation and writing do not count
    validated: int = 0  # step of the last validation
    best_loss: float | None = None  # the least validation loss
    best_step: int = 0  # and its step
    worse: int = 0  # validations since then
    window_loss: float = 0.0  # since the last log line: sum of loss x target tokens,
    window_targets: int = 0  # target tokens,
    window_tokens: int = 0  # source + target tokens,
    window_seconds: float = 0.0


@dataclass
class Summary:
    """How a run ended, `stopped` by "max_steps" or "patience"; losses in nats a target token, None if not validated."""

    step: int
    stopped: str
    checkpoint: Path
    tokens: int
    seconds: float
    valid_loss: float | None = None
    perplexity: float | None = None
    bleu: float | None = None
    best_loss: float | None = None
    best_step: int = 0


class Trainer:
    """Trains a model and keeps its run folder: checkpoints, metrics.jsonl, log.txt, config.toml, tokenizer.json.

    One update takes `accumulate` micro-batches. With n their target tokens, padding not counted, each adds the gradient
    of its summed loss / n, so that k micro-batches are one batch of their union; then clipping, then Adam with the
    schedule's rate of this step (section 5).

    `resume` goes on from the newest checkpoint of `run_dir`, or from the start where there is none yet. Raises
    UserError where `run_dir` has checkpoints and `resume` is False, and for a checkpoint that is damaged or of another
    model, tokenizer, training text or configuration. Nothing is written before `run`.
    """

    def __init__(
        self,
        model: Transformer,
        config: RunConfig,
        tokenizer: Tokenizer,
        train_batches: Batches,
        valid_corpus: Corpus | None,
        run_dir: str | Path,
        resume: bool = False,
        progress: bool = True,
    ) -> None:
        self.model, self.config, self.tokenizer = model, config, tokenizer
        self.batches, self.valid_corpus, self.run_dir = train_batches, valid_corpus, Path(run_dir)
        t = config.train
        self.schedule = NoamSchedule(model.config.d_model, t.warmup_steps, t.lr_scale)
        self.state = RunState()
        self.saved: Path | None = None  # the newest checkpoint
        self.report = RunReport(self.run_dir, t.max_steps, progress)
        self.update = Update(model, t, self.report, meanwhile=self._prepare_batches)
        self.stream = Stream(train_batches)
        self._measured: dict[str, float] | None = None  # the last validation of this process
        self._stop = False  # asked to by a signal
        found = store.list_checkpoints(self.run_dir)
        if found and not resume:
            raise store.run_exists(self.run_dir)
        if resume:
            store.check_same_config(config, self.run_dir)
            if found:
                self._load(found[-1])

    def run(self) -> Summary:
        """Trains to train.max_steps, or until patience ends, and tells how it went.

        Ctrl-C or SIGTERM: the step is finished, a checkpoint written, KeyboardInterrupt raised; a second one raises at
        once. Raises UserError where a loss or gradient is not finite (that update is not made), where memory or the
        disk is full.
        """
        npx.tune()
        with store.disk_errors(str(self.run_dir)):
            (self.run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
            store.clean_leftovers(self.run_dir)
            store.write_text(self.run_dir / "config.toml", self.config.dump())
            if not (self.run_dir / "tokenizer.json").exists():
                self.tokenizer.save(self.run_dir / "tokenizer.json")
            with self.report.opened(self.state), self._signals():
                self._announce()
                self.model.train()
                if self._validation_due():  # stopped before or within it
                    self._validate()
                while not self._end():
                    if self._update():
                        self._after_update()
                return self._summary()

    # ---- one update

    def _update(self) -> bool:
        """One update; False where it overflowed the range of fp16 and was not made: then it is no step either."""
        started = time.perf_counter()
        s, step = self.state, self.state.step + 1
        micro = [self._next_batch() for _ in range(self.config.train.accumulate)]
        targets = sum(batch.n_target_tokens for batch in micro)
        tokens = targets + sum(int((batch.src != self.model.config.pad_id).sum()) for batch in micro)
        loss, norm = self.update.gradient(micro, step)
        good = math.isfinite(loss) and math.isfinite(norm)
        if good:
            self.lr, self.norm = self.schedule(step), norm
            self.update.apply(self.lr, norm)
        elif not self.update.scale.overflowed():
            raise self._not_finite(step, *(("gradient norm", norm) if math.isfinite(loss) else ("loss", loss)))
        seconds = time.perf_counter() - started
        s.seconds += seconds
        s.window_seconds += seconds
        if not good:
            self._skipped(step)
            return False
        s.step = step
        s.tokens += tokens
        s.window_loss += loss * targets
        s.window_targets += targets
        s.window_tokens += tokens
        self.report.advance(s)
        return True

    def _skipped(self, step: int) -> None:
        scale = self.update.scale
        self.report.metrics({"kind": "skipped", "step": step, "loss_scale": scale.value, "skipped": scale.skipped})
        self.report.line(f"step {step}: beyond the range of fp16; update skipped, loss scale now {scale.value:g}")

    def _next_batch(self) -> Batch:
        s = self.state
        place = s.epoch, s.index
        s.in_epoch = s.epoch + 1
        s.epoch, s.index = self.stream.after(place)
        return self.stream.batch(place)

    def _prepare_batches(self) -> None:
        """The next update's, while the device computes this one's gradient."""
        self.stream.prepare((self.state.epoch, self.state.index), self.config.train.accumulate)

    def _not_finite(self, step: int, what: str, value: float) -> UserError:
        kept = f"the last good checkpoint is {self.saved}" if self.saved else "there is no checkpoint before it"
        message = (
            f"training, step {step}: expected a finite {what}; got {value}; nothing of it is kept, {kept}; "
            f"try a smaller train.lr_scale, a larger train.warmup_steps, or train.clip_norm=1.0"
        )
        self.report.line(message)
        return UserError(message)

    # ---- between updates

    def _after_update(self) -> None:
        t, s = self.config.train, self.state
        if s.step % t.log_every == 0:
            self._log()
        if self._validation_due() and not self._stop:
            self._validate()
        if s.step % t.checkpoint_every == 0 or self._stop or self._end():
            self._save()
        if self._stop:
            self.report.line(f"stopped by a signal after step {s.step}; {self.saved} is written; --resume goes on")
            raise KeyboardInterrupt

    def _log(self) -> None:
        s = self.state
        loss, speed = s.window_loss / s.window_targets, s.window_tokens / max(s.window_seconds, 1e-9)
        entry = {"kind": "train", "step": s.step, "epoch": s.in_epoch, "loss": loss, "lr": self.lr}
        entry |= {"gradient_norm": self.norm, "tokens": s.tokens, "tokens_per_second": round(speed, 1)}
        if self.update.scale.dynamic:
            entry["loss_scale"] = self.update.scale.value
        self.report.metrics(entry | {"seconds": round(s.seconds, 3)})
        self.report.line(
            f"step {s.step}/{self.config.train.max_steps}  epoch {s.in_epoch}  loss {loss:.4f}  lr {self.lr:.3g}  "
            f"{speed:,.0f} tokens/s  {self.report.time_left(s)}"
        )
        s.window_loss, s.window_targets, s.window_tokens, s.window_seconds = 0.0, 0, 0, 0.0

    def _validation_due(self) -> bool:
        s = self.state
        return self.valid_corpus is not None and s.validated < s.step and s.step % self.config.train.validate_every == 0

    def _validate(self) -> None:
        """Validates and notes the result for early stopping; after a signal within, it is still due on resuming."""
        s, result = self.state, self._measure()
        if result is None:
            return
        self._record(result)
        s.validated = s.step
        if s.best_loss is None or result["loss"] < s.best_loss:
            s.best_loss, s.best_step, s.worse = result["loss"], s.step, 0
        else:
            s.worse += 1

    def _measure(self) -> dict[str, float] | None:
        """Loss without smoothing, perplexity, BLEU of greedy search, on the validation text; None after a signal."""
        assert self.valid_corpus is not None
        started, t = time.perf_counter(), self.config.train
        longest = int(max(self.valid_corpus.src_lengths.max(), self.valid_corpus.tgt_lengths.max()))
        batches = Batches(self.valid_corpus, max(longest, t.batch_tokens))
        total, targets = 0.0, 0
        found: dict[int, list[int]] = {}  # pair -> token ids
        self.model.eval()
        try:
            with no_grad():
                for indices in batches.by_length():
                    if self._stop:
                        return None
                    batch = batches.batch(indices)
                    total += self.model.loss(batch.src, batch.tgt, 0.0, normalizer=1.0).item()
                    targets += batch.n_target_tokens
                    if t.validate_bleu:
                        best = greedy_search(self.model, batch.src, max_extra=self.config.search.max_extra)
                        found |= {int(i): hypothesis.tokens for i, hypothesis in zip(indices, best, strict=True)}
        finally:
            self.model.train()
        if not math.isfinite(total):
            raise self._not_finite(self.state.step, "validation loss", total)
        result = {"loss": total / targets, "perplexity": math.exp(min(total / targets, 700.0))}
        if t.validate_bleu:
            result["bleu"] = self._bleu(found)
        result["seconds"] = round(time.perf_counter() - started, 3)
        self._measured = result
        return result

    def _bleu(self, found: dict[int, list[int]]) -> float:
        """sacreBLEU, with its 13a tokenizer, or with none where the text is tokenised already."""
        from train.scoring import corpus_bleu_for_validation

        assert self.valid_corpus is not None
        hypotheses = self.tokenizer.decode_batch(list(found.values()))
        references = self.tokenizer.decode_batch([self.valid_corpus.pair(i)[1] for i in found])
        how = "none" if self.config.data.pretokenizer == "whitespace" else "13a"
        return corpus_bleu_for_validation(hypotheses, references, tokenize=how)

    def _record(self, result: dict[str, float]) -> None:
        s = self.state
        self.report.metrics({"kind": "valid", "step": s.step, "epoch": s.in_epoch, "tokens": s.tokens, **result})
        bleu = f"  BLEU {result['bleu']:.2f}" if "bleu" in result else ""
        self.report.line(
            f"validation after step {s.step}: loss {result['loss']:.4f}  perplexity {result['perplexity']:.2f}{bleu}  "
            f"({result['seconds']:.1f} s)"
        )

    # ---- what is kept

    def _save(self) -> None:
        self.report.sync()
        adam = self.update.adam.state_dict()
        state = {
            "step": self.state.step,
            "model": self.model.config.to_dict(),
            "tokenizer_digest": self.tokenizer.digest,
            "text_sha256": self._text(),
            "adam_steps": adam.pop("step"),
            "loss_scale": self.update.scale.state_dict(),
            "run": asdict(self.state),
        }
        keep = self.config.train.keep_last
        self.saved = store.save_checkpoint(self.run_dir, state, self.model.state_dict(), adam, keep)

    def _load(self, path: Path) -> None:
        checkpoint = store.load_checkpoint(path)
        state, own = checkpoint.state, self.model.config.to_dict()
        store.check_tokenizer(self.tokenizer, state, self.run_dir / "tokenizer.json")
        for key in own:
            if own[key] != state["model"].get(key):
                raise UserError(
                    f"resume: model.{key}: expected {state['model'].get(key)!r} as in {path}; got {own[key]!r}; "
                    f"try the run's own configuration, or another --out"
                )
        if state.get("text_sha256") != self._text():
            raise UserError(
                f"resume: expected the training text of {path}; got another (by SHA-256); try its files, or a new --out"
            )
        try:
            self.update.adam.load_state_dict({**checkpoint.optimizer, "step": state["adam_steps"]})
            if "loss_scale" in state:  # earlier checkpoints have none
                self.update.scale.load_state_dict(state["loss_scale"])
            self.model.load_state_dict(checkpoint.model)
            self.state = RunState(**state["run"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: expected a checkpoint of this run; got {error}; try an older one") from None
        self.saved = path

    def _text(self) -> Any:
        """SHA-256 of both sides of the training text; None for pairs that never were files."""
        return self.batches.corpus.meta.get("sha256")

    def _announce(self) -> None:
        s, t = self.state, self.config.train
        for name, corpus in (("training", self.batches.corpus), ("validation", self.valid_corpus)):
            if corpus is not None:
                self.report.line(f"{name} text: {describe(corpus)}")
        self.report.line(
            f"{f'resuming from {self.saved}' if self.saved else 'training'}: {self.model.n_parameters():,} parameters, "
            f"{self.tokenizer.vocab_size:,} pieces, {len(self.stream.epoch(s.epoch)):,} batches an epoch of at most "
            f"{t.batch_tokens:,} tokens a side, {t.accumulate} an update, steps {s.step + 1} to {t.max_steps}, "
            f"seed {t.seed}"
        )
        if self.saved and (self.run_dir / "checkpoints" / "averaged").is_dir():
            self.report.line("checkpoints/averaged stays, and is what translate uses, until `average` runs again")

    def _end(self) -> str:
        """Why training is over: "max_steps", "patience", or "" for not yet."""
        t, s = self.config.train, self.state
        return "max_steps" if s.step >= t.max_steps else "patience" if 0 < t.patience <= s.worse else ""

    def _summary(self) -> Summary:
        """Ends the run; validates where the last step is none of validate_every, or where nothing was left to train."""
        s = self.state
        if self.valid_corpus is not None and (s.validated < s.step or self._measured is None):
            if self._measure() is None:
                raise KeyboardInterrupt
            if self._measured and s.validated < s.step:
                self._record(self._measured)
        assert self.saved is not None
        self.report.line(
            f"done after step {s.step} ({self._end()}), {s.tokens:,} tokens in {clock(s.seconds)}: {self.saved}"
        )
        last: dict[str, Any] = self._measured or {}
        measured = (last.get("loss"), last.get("perplexity"), last.get("bleu"))
        return Summary(s.step, self._end(), self.saved, s.tokens, s.seconds, *measured, s.best_loss, s.best_step)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """In the block the first SIGINT or SIGTERM asks the loop to stop, the second raises KeyboardInterrupt there."""

        def handler(number: int, frame: Any) -> None:
            if self._stop:
                raise KeyboardInterrupt
            self._stop = True
            # Straight to the terminal: a buffered writer may be in the middle of a line when the signal comes.
            os.write(2, b"\nstopping after this step; once more stops at once\n")

        if threading.current_thread() is not threading.main_thread():
            yield  # Python delivers signals to the main thread alone
            return
        before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)
