"""A complete training from a configuration: text -> tokenizer -> token arrays -> model -> Trainer.

train(config, "runs/a")                  in a new folder
train(config, "runs/a", resume=True)     continues from the newest checkpoint, bit for bit
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import npx
from models import ARCHITECTURES
from train.errors import UserError
from train.files import write_text
from train.learn.signals import reraise_lost_interrupts
from train.learn.trainer import Trainer
from train.run.checkpoint import check_same_config
from train.run.config import RunConfig
from train.run.folder import RunFolder
from train.run.state import Summary
from train.tasks import TASKS, Task
from train.tasks.protocols import Corpus, TextTokenizer

Texts = Mapping[str, tuple[str, ...]]


@reraise_lost_interrupts()
def train(
    config: RunConfig,
    run_dir: str | Path,
    resume: bool = False,
    progress: bool = True,
    max_hours: float = 0.0,
    debug: str = "",
) -> Summary:
    """Train a model from a configuration: tokenizer, token arrays, model, `Trainer.run`.

    The tokenizer is trained on the training text only. Configuration and files are checked before anything is
    written, and a newly created folder is removed if training fails before the first update. With several ranks
    (npx.distributed) all call this with equal arguments and a folder that all can access; rank 0 writes.

    Args:
        config: The configuration of the run.
        run_dir: The run folder. The token arrays go to its data/ folder unless data.prepared names another one.
        resume: Continue from the newest checkpoint of `run_dir`, bit for bit as if it had not stopped.
        progress: Show progress on standard error.
        max_hours: Stop before this time, with a checkpoint; 0 means no limit.
        debug: "anomaly" reports the first operation that produced a NaN or infinity, by repeating the update.

    Returns:
        The summary of the run.

    Raises:
        UserError: The configuration, a file or the folder is invalid: among them a folder with checkpoints when
            `resume` is False, one without a run when it is True, and one that another program has locked.
    """
    start, world = time.monotonic(), join_ranks()
    run, t, task = RunFolder(run_dir), config.train, TASKS[config.data.task]
    world.start_heartbeat(t.rank_timeout)
    with world.rank_zero_first():
        if world.rank == 0:
            run.check(resume)
    try:
        precision = npx.use_precision(t.precision)
        npx.precision_named(t.reduce_dtype).compute_dtype  # noqa: B018  raises if this NumPy lacks the dtype
    except ValueError as error:
        raise UserError(f"train.{error}") from None
    check_model(config, task)
    texts = task.texts(config.data)
    kind = config.data.tokenizer
    existing = None if kind in task.tokenizers else task.load_tokenizer(kind)

    def say(text: str) -> None:
        if progress and world.rank == 0:
            with suppress(OSError):  # standard error is closed
                print(text, file=sys.stderr, flush=True)

    with ExitStack() as stack:
        with world.rank_zero_first():
            if world.rank == 0:
                stack.enter_context(run.creating(resume))
            reuse = resume or world.rank > 0  # the other ranks read what rank 0 has written
            if reuse:
                check_same_config(run, config)
            else:
                write_text(run.config_file, config.dump())
            tokenizer = prepare_tokenizer(run, config, texts, existing, reuse, say)
            corpora = prepare_corpora(run, config, texts, tokenizer, say)
        special = {"pad_id": tokenizer.pad_id, "bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id}
        if tokenizer.n_outputs < tokenizer.vocab_size:
            special["n_outputs"] = tokenizer.n_outputs
        shape = config.transformer_config(tokenizer.vocab_size, **special)
        check_memory(shape.n_parameters(), precision.parameter_bytes)
        model = shape.build(t.seed, precision.weight_dtype)
        deadline = start + 3600 * max_hours if max_hours else None
        trainer = Trainer(model, config, tokenizer, corpora, run_dir, resume, progress, deadline, debug)
        run.commit()
        return trainer.run()


def prepare_tokenizer(
    run: RunFolder,
    config: RunConfig,
    texts: Texts,
    existing: TextTokenizer | None,
    reuse: bool,
    say: Callable[[str], object],
) -> TextTokenizer:
    """Return the run's tokenizer: its own if `reuse` and it has one, else `existing`, else a newly trained one."""
    data, task = config.data, TASKS[config.data.task]
    if reuse and run.tokenizer_file.exists():
        return task.load_tokenizer(run.tokenizer_file)
    if existing is None:
        say(f"training a {data.tokenizer} tokenizer with at most {data.vocab_size:,} subwords")
    tokenizer = existing or task.learn_tokenizer(data, texts["train"])
    tokenizer.save(run.tokenizer_file)
    return tokenizer


def prepare_corpora(
    run: RunFolder, config: RunConfig, texts: Texts, tokenizer: TextTokenizer, say: Callable[[str], object]
) -> dict[str, Corpus]:
    """Return the token arrays of every text by its part, "train" and optionally "valid"."""
    data, task = config.data, TASKS[config.data.task]

    def progress(examples: int) -> None:
        if examples % (1 << 20) == 0:
            say(f"{examples:,} examples read")

    corpora: dict[str, Corpus] = {}
    for part in sorted(texts, reverse=True):  # "valid" first: it is small, so its errors show early
        say(f"preparing the {part} text: {', '.join(texts[part])}")
        corpora[part] = task.prepare(texts[part], tokenizer, run.data(part, data.prepared), data.max_length, progress)
    return corpora


def join_ranks() -> npx.distributed.World:
    """Return the world of all ranks started with this process. Raises UserError if they do not connect."""
    try:
        return npx.distributed.join()
    except RuntimeError as error:
        raise UserError(str(error)) from None


def check_memory(parameters: int, bytes_per_parameter: int) -> None:
    """Raise UserError if weights, gradients and moments of the model exceed the memory of this machine."""
    gib = parameters * bytes_per_parameter / 2**30
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (AttributeError, ValueError, OSError):  # unknown on this system
        return
    if npx.device() == "cpu" and gib > total:
        raise UserError(
            f"model: expected weights, gradients and moments that fit in this machine's {total:,.0f} GiB; got "
            f"{parameters:,} parameters, which take {gib:,.0f} GiB; try a smaller model.d_model, d_ff or n_layers"
        )


def check_model(config: RunConfig, task: Task) -> None:
    """Raise UserError for a model that cannot be built, does not fit the task, or is too short for data.max_length."""
    try:
        shape = config.transformer_config(config.data.vocab_size)
    except ValueError as error:
        raise UserError(f"model.{error}") from None
    architectures = [name for name, model in ARCHITECTURES.items() if model.examples == task.examples]
    if shape.architecture not in architectures:
        raise UserError(
            f"model.architecture: expected {' or '.join(architectures)} for the task {task.name}; "
            f"got {shape.architecture}; try {architectures[0]}"
        )
    longest = shape.outline().max_length
    if longest is not None and config.data.max_length > longest:
        raise UserError(
            f"data.max_length: expected at most model.max_positions = {longest} with learned positions; "
            f"got {config.data.max_length}; try max_length = {longest}"
        )
