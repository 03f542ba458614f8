"""A whole training from a configuration: text -> tokenizer -> token arrays -> model -> Trainer.

train(config, "runs/a")                  in a new folder
train(config, "runs/a", resume=True)     goes on from the newest checkpoint, bit for bit as if it had never stopped
"""

import os
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import npx
from models import ARCHITECTURES
from train.errors import UserError
from train.files import write_text
from train.learn.signals import interruptible, never_lost
from train.learn.trainer import Trainer
from train.run.checkpoint import check_same_config
from train.run.config import RunConfig
from train.run.folder import RunFolder
from train.run.state import Summary
from train.tasks import TASKS, Task


@never_lost()
def train(
    config: RunConfig,
    run_dir: str | Path,
    resume: bool = False,
    progress: bool = True,
    max_hours: float = 0.0,
    debug: str = "",
) -> Summary:
    """The whole of a training in the folder `run_dir`: tokenizer, token arrays in RUN/data, model, Trainer.run().

    Of several ranks (npx.distributed) all call it, with the same arguments and one folder that all see; rank 0 writes.

    The tokenizer is learned on the training text alone. Configuration and files are looked at before anything is
    written, and what fails before the first update, the text being read, leaves no new folder behind. `max_hours` (0:
    none) is when it stops at the latest, with a checkpoint; `debug` "anomaly": the first operation that makes a number
    which is not finite is named, by forming that update again. Raises UserError for a user's mistake: among them a
    `run_dir` that has a run, unless it was only begun, and with `resume` one that has none; and where another program
    writes to it.
    """
    started, world = time.monotonic(), joined()
    run, data, t, task = RunFolder(run_dir), config.data, config.train, TASKS[config.data.task]
    world.start_heartbeat(t.rank_timeout)
    with world.rank_zero_first():
        if world.rank == 0:
            run.check(resume)
    try:
        precision = npx.use_precision(t.precision)
        npx.precision_named(t.reduce_dtype).compute_dtype  # noqa: B018  which not every NumPy has
    except ValueError as error:
        raise UserError(f"train.{error}") from None
    check_model(config, task)
    texts = task.texts(data)
    given = None if data.tokenizer in task.tokenizers else task.load_tokenizer(data.tokenizer)

    def say(text: str) -> None:
        if progress and world.rank == 0:
            with suppress(OSError):  # nobody reads it any more
                print(text, file=sys.stderr, flush=True)

    def prepared(examples: int) -> None:
        if examples % (1 << 20) == 0:
            say(f"{examples:,} read")

    def made() -> tuple[Any, dict[str, Any]]:
        """Tokenizer and corpora, on rank 0 learned and prepared; the others find what it wrote."""
        if resume or world.rank:
            check_same_config(run, config)
        else:
            write_text(run.config_file, config.dump())
        if (resume or world.rank) and run.tokenizer_file.exists():
            tokenizer = task.load_tokenizer(run.tokenizer_file)
        else:
            if given is None:
                say(f"learning a {data.tokenizer} vocabulary of at most {data.vocab_size:,} pieces")
            tokenizer = given or interruptible(lambda: task.learn_tokenizer(data, texts["train"]))
            tokenizer.save(run.tokenizer_file)
        corpora: dict[str, Any] = {}
        for part in sorted(texts, reverse=True):  # "valid" is small: its mistakes are told first
            say(f"preparing the {part} text: {', '.join(texts[part])}")
            arrays = run.data(part, data.prepared)
            corpora[part] = task.prepare(texts[part], tokenizer, arrays, data.max_length, prepared)
        return tokenizer, corpora

    with ExitStack() as stack:
        with world.rank_zero_first():
            if world.rank == 0:
                stack.enter_context(run.begun(resume))
            tokenizer, corpora = made()
        special = {"pad_id": tokenizer.pad_id, "bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id}
        if tokenizer.n_outputs < tokenizer.vocab_size:
            special["n_outputs"] = tokenizer.n_outputs
        shape = config.transformer_config(tokenizer.vocab_size, **special)
        check_memory(shape.n_parameters(), precision.parameter_bytes)
        model = shape.build(t.seed, precision.weight_dtype)
        deadline = started + 3600 * max_hours if max_hours else None
        trainer = Trainer(model, config, tokenizer, corpora, run_dir, resume, progress, deadline, debug)
        run.started()
        return trainer.run()


def joined() -> npx.distributed.World:
    """The world of all ranks that were started with this process; UserError where they do not find each other."""
    try:
        return npx.distributed.join()
    except RuntimeError as error:
        raise UserError(str(error)) from None


def check_memory(parameters: int, each: int) -> None:
    """UserError for a model whose weights, gradients and moments (`each` bytes a parameter) do not fit in here."""
    gib = parameters * each / 2**30
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (AttributeError, ValueError, OSError):  # not told by this system
        return
    if npx.device() == "cpu" and gib > there:
        raise UserError(
            f"model: expected one whose weights, gradients and moments fit into this machine's {there:,.0f} GiB; got "
            f"{parameters:,} parameters, which take {gib:,.0f} GiB; try a smaller model.d_model, d_ff or n_layers"
        )


def check_model(config: RunConfig, task: Task) -> None:
    """UserError for a model that cannot be built, that the task does not train, or that is too short for the text."""
    try:
        shape = config.transformer_config(config.data.vocab_size)
    except ValueError as error:
        raise UserError(f"model.{error}") from None
    fitting = [name for name, kind in ARCHITECTURES.items() if kind.examples == task.examples]
    if shape.architecture not in fitting:
        raise UserError(
            f"model.architecture: expected {' or '.join(fitting)} for the task {task.name}; "
            f"got {shape.architecture}; try {fitting[0]}"
        )
    most = shape.outline().max_length
    if most is not None and config.data.max_length > most:
        raise UserError(
            f"data.max_length: expected at most model.max_positions = {most} with learned positions; "
            f"got {config.data.max_length}; try max_length = {most}"
        )
