"""A whole training from a configuration: text -> tokenizer -> token arrays -> model -> Trainer. Next: trainer.py.

train(config, "runs/a")                  in a new folder
train(config, "runs/a", resume=True)     goes on from the newest checkpoint, bit for bit as if it had never stopped
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import npx
from models import Transformer
from train import checkpoint as store
from train.config import RunConfig
from train.data import Batches, prepare
from train.errors import UserError, read_pairs
from train.tokenizer import KINDS, Tokenizer
from train.trainer import Summary, Trainer


def train(config: RunConfig, run_dir: str | Path, resume: bool = False, progress: bool = True) -> Summary:
    """The whole of a training in the folder `run_dir`: tokenizer, token arrays in RUN/data, model, Trainer.run().

    The tokenizer is learned on both sides of the training text alone. Configuration and text are checked before
    anything is written, and what fails before the first update leaves no new folder behind. Raises UserError for a
    user's mistake: among them a `run_dir` that exists, unless it is empty, and with `resume` one that does not.
    """
    run_dir, data, t = Path(run_dir), config.data, config.train
    exists = run_dir.exists() and not (run_dir.is_dir() and not any(run_dir.iterdir()))
    if exists and not (resume and run_dir.is_dir()):
        raise store.run_exists(run_dir)
    if resume and not exists:
        raise UserError(f"{run_dir}: expected a run folder to resume; got none; try it without --resume")
    if resume:
        store.check_same_config(config, run_dir)
    try:
        precision = npx.use_precision(t.precision)
    except ValueError as error:
        raise UserError(f"train.{error}") from None
    sides = check_text(config)
    kept = run_dir / "tokenizer.json"
    given = None if data.tokenizer in KINDS else Tokenizer.load(data.tokenizer)

    def say(text: str) -> None:
        if progress:
            print(text, file=sys.stderr, flush=True)

    def prepared(pairs: int) -> None:
        if pairs % (1 << 20) == 0:
            say(f"{pairs:,} pairs")

    try:
        with store.disk_errors(str(run_dir)):
            run_dir.mkdir(parents=True, exist_ok=True)
            if not (run_dir / "config.toml").exists():
                store.write_text(run_dir / "config.toml", config.dump())
            if resume and kept.exists():
                tokenizer = Tokenizer.load(kept)
            else:
                if given is None:
                    say(f"learning a {data.tokenizer} vocabulary of at most {data.vocab_size:,} pieces")
                tokenizer = given or Tokenizer.train(sides["train"], data.tokenizer, data.vocab_size, data.pretokenizer)
                tokenizer.save(kept)
            corpora = {}
            for name, (src, tgt) in sides.items():
                say(f"preparing the {name} text: {src}, {tgt}")
                corpora[name] = prepare(src, tgt, tokenizer, run_dir / "data" / name, data.max_length, prepared)
            batches = Batches(corpora["train"], t.batch_tokens, t.seed)
            shape = config.transformer_config(tokenizer.vocab_size)
            model = Transformer(shape, seed=t.seed, dtype=precision.weights)
            trainer = Trainer(model, config, tokenizer, batches, corpora.get("valid"), run_dir, resume, progress)
    except BaseException:
        if not exists:
            shutil.rmtree(run_dir, ignore_errors=True)
        raise
    return trainer.run()


def check_text(config: RunConfig) -> dict[str, tuple[str, str]]:
    """The (source, target) files of "train" and, if any, "valid", read to their end; UserError for what is wrong."""
    data = config.data
    try:
        longest = config.transformer_config(data.vocab_size).outline().longest
    except ValueError as error:
        raise UserError(f"model.{error}") from None
    if longest and data.max_length > longest:
        raise UserError(
            f"data.max_length: expected at most model.max_positions = {longest} with learned positions; "
            f"got {data.max_length}; try max_length = {longest}"
        )
    sides = {"train": (data.train_src, data.train_tgt)}
    if data.valid_src or data.valid_tgt:
        sides["valid"] = (data.valid_src, data.valid_tgt)
    for part, files in sides.items():
        for side, file in zip(("src", "tgt"), files, strict=True):
            if not file:
                raise UserError(f"data.{part}_{side}: expected a text file; got none; try --{part}-{side} FILE")
        for _ in read_pairs(*files):
            pass
    return sides
