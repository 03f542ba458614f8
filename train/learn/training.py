"""A complete training run from a configuration: text -> tokenizer -> token arrays -> model -> Trainer.

train(config, "runs/a")                  in a new folder
train(config, "runs/a", resume=True)     continues from the newest checkpoint, bit for bit
"""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain
from pathlib import Path

import npx
from models import ARCHITECTURES, TransformerConfig
from train.errors import UserError, quote
from train.files import MISSING
from train.learn.memory import check_memory
from train.learn.parallel.join import check_equal, check_equal_inputs, check_equal_run, join_ranks
from train.learn.signals import reraise_lost_interrupts
from train.learn.text_checks import (
    TextFiles,
    check_resumable,
    check_shared_arrays,
    equal_sides_warnings,
    has_new_text,
    left_out_warnings,
    shared_lines_warnings,
)
from train.learn.trainer import Trainer
from train.learn.warm_start import select_frozen, select_parameters, warm_start
from train.progress import Display, Work
from train.run.checkpoint import is_imported, resumed_config
from train.run.config import RunConfig, preset_values
from train.run.folder import RunFolder
from train.run.keys import METRICS
from train.run.metric_files import check_tensorboard
from train.run.report import describe_vocabularies
from train.run.state import TrainingSummary
from train.run.storage import array_digest
from train.run.toml_text import format_value
from train.tasks import TASKS, Task
from train.tasks.protocols import Corpus, TextTokenizer


@reraise_lost_interrupts()
def train(
    config: RunConfig,
    run_dir: str | Path,
    resume: bool = False,
    progress: bool = True,
    max_hours: float = 0.0,
    debug: str = "",
) -> TrainingSummary:
    """Train a model from a configuration: prepare tokenizer, token arrays and model, then call `Trainer.run`.

    The tokenizer is trained on the training text only. Configuration and files are checked before anything is
    written, and a newly created folder is removed if training fails before the first update. With several ranks
    (npx.distributed), all ranks call this function with equal arguments and a folder that all of them can access; rank
    0 writes.

    Args:
        config: the configuration of the run.
        run_dir: the run folder. The token arrays go to its data/ folder unless data.prepared names another one.
        resume: whether to continue from the newest checkpoint of `run_dir`, bit for bit like an uninterrupted run.
        progress: whether to show progress on standard error.
        max_hours: time limit; training writes a checkpoint and stops before it is reached. 0 means no limit.
        debug: "anomaly" reports the first operation that produced a NaN or infinity, by repeating the update.

    Returns the summary of the run. Raises UserError if the configuration, a file or the folder is invalid. A folder is
    invalid if it has checkpoints and `resume` is False, if it has no run and `resume` is True, or if another program
    holds its lock.
    """
    start = time.monotonic()
    world = join_ranks("train")
    run = RunFolder(run_dir)
    settings = config.train
    task = TASKS[config.data.task]
    world.start_heartbeat(settings.rank_timeout)
    with world.rank_zero_first():
        if world.rank == 0:
            run.check(resume)
            if resume and is_imported(run):
                raise UserError(
                    f"{run.path}: expected a run to resume; got an imported run, which has no optimizer state; "
                    f"try --init {quote(run.path)} with a new --out"
                )
            check_init_unchanged(run, settings.init)
    try:
        precision = npx.use_precision(settings.precision)
        npx.precision_named(settings.reduce_dtype).require_dtype()
    except ValueError as error:
        raise UserError(f"train.{error}") from None
    check_model(config, task)
    text_files = task.text_files(config.data)
    check_equal_inputs(config, chain(*text_files.values()), resume=resume, debug=debug, max_hours=max_hours)
    kind = config.data.tokenizer
    check_best_metric(config, task, text_files)
    if settings.tensorboard and world.rank == 0:
        check_tensorboard()
    has_own_tokenizer = (
        resume and run.tokenizer_file.exists() and not has_new_text(run, config.data.prepared, text_files["train"])
    )
    existing = None if kind in task.tokenizers or has_own_tokenizer else load_existing_tokenizer(task, kind)

    config = config.with_absolute_paths(resume)
    with ExitStack() as stack:
        with world.rank_zero_first():
            if world.rank == 0:
                stack.enter_context(run.creating(resume))
                if not resume:
                    run.write_config(config)
        check_equal_run(run.path)
        with world.rank_zero_first(), Display(progress and world.rank == 0) as display:
            if resume or world.rank > 0:
                config = resumed_config(run, config)
            reuse = has_own_tokenizer or world.rank > 0  # the other ranks read what rank 0 has written
            tokenizer = prepare_tokenizer(run, config, text_files, existing, reuse, display)
            if resume:
                check_resumable(run, task, tokenizer, text_files)
            for part in text_files if config.data.prepared else ():
                check_shared_arrays(run, part, config, tokenizer, text_files[part])
            if resume and (changes := describe_changes(run, config)):
                display.write(f"changed since the last start: {changes}")
            if world.rank == 0 and not has_own_tokenizer:
                tokenizer.save(run.tokenizer_file)
            model_config = config.transformer_config(tokenizer.vocab_size, **tokenizer_fields(tokenizer, config))
            check_memory(model_config, settings, precision)
            model = model_config.build(settings.seed, precision.weight_dtype)
            warnings: list[str] = []
            # Copy the weights before the slow encoding of the text, so that errors show early.
            if settings.init and not (resume and run.step_paths()):
                line = warm_start(model, settings.init, settings.init_parameters, tokenizer, warnings.append)
                warnings = [f"warning: {text}" for text in warnings]
                display.write(line)
            corpora = prepare_corpora(run, config, text_files, tokenizer, display)
            for part, corpus in corpora.items():
                warnings += left_out_warnings(corpus, text_files[part]) + task.warnings(corpus, text_files[part])
            with display.work("comparing the training and validation texts"):
                if world.rank == 0 and not resume and len(task.file_keys["train"]) > 1:  # a text of pairs
                    warnings += equal_sides_warnings(text_files) + shared_lines_warnings(text_files)
        deadline = start + 3600 * max_hours if max_hours else None
        trainer = Trainer(model, config, tokenizer, corpora, run_dir, resume, progress, deadline, debug)
        trainer.checkpointer.warnings += warnings
        values = {"--out, tokenizer": tokenizer.digest, "--out, step": trainer.state.step}
        check_equal(lambda: values | {f"weights, {n}": array_digest(n, p.weights) for n, p in model.named_parameters()})
        run.commit()
        return trainer.run()


def describe_changes(run: RunFolder, config: RunConfig) -> str:
    """Return the keys of `config` that differ from config.toml of the run, with their values, or ""."""
    with suppress(UserError):  # config.toml is missing or was damaged; it will be replaced
        values = {f"{table}.{f.name}": value for table, f, value in config.items()}
        stored = run.load_config().with_absolute_paths(is_resumed=True)
        changes = {key: values[key] for key in config.changed_keys(stored)}
        return ", ".join(f"{key} {'unset' if v is None else f'= {format_value(v)}'}" for key, v in changes.items())
    return ""


def load_existing_tokenizer(task: Task, path: str) -> TextTokenizer:
    """Return the tokenizer in a file that data.tokenizer names. Raises UserError if it is missing or damaged."""
    if path and not os.path.exists(path):
        raise UserError(
            f"{path}: expected an existing tokenizer.json, or {' or '.join(task.tokenizers)} to train a tokenizer; "
            f"got {MISSING}; try --set data.tokenizer=F with another path, or --data DIR if `data` wrote the file"
        )
    if os.path.isfile(file := os.path.join(path, "tokenizer.json")):
        suggestion = f"data.tokenizer={quote(file)}"
        raise UserError(f"{path}: expected a Hugging Face tokenizer.json; got a folder; try {suggestion}")
    return task.load_tokenizer(path)


def tokenizer_fields(tokenizer: TextTokenizer, config: RunConfig) -> dict[str, int]:
    """Return the fields of the model's configuration that the tokenizer determines, except vocab_size."""
    result = {"pad_id": tokenizer.pad_id, "bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id}
    if tokenizer.n_outputs < tokenizer.vocab_size:
        result["n_outputs"] = tokenizer.n_outputs
    if tokenizer.src_vocab_size is not None:
        result["src_vocab_size"] = tokenizer.src_vocab_size
    if config.transformer_config(tokenizer.vocab_size).word_dropout:
        result["unk_id"] = tokenizer.special_ids.unk_id
    return result


def prepare_tokenizer(
    run: RunFolder,
    config: RunConfig,
    text_files: TextFiles,
    existing: TextTokenizer | None,
    reuse: bool,
    display: Display,
) -> TextTokenizer:
    """Return the run's tokenizer.

    With `reuse`, return the tokenizer in the run folder; otherwise `existing` or a newly trained tokenizer.
    """
    data, task = config.data, TASKS[config.data.task]
    if existing is not None:
        existing = task.adapt_tokenizer(existing, data, text_files["train"])
        check_vocabularies(existing, config, task)
        size = data.vocab_size
        default = preset_values(config.model.preset)["data"]["vocab_size"]
        if size not in (default, n_subwords := existing.src_vocab_size or existing.vocab_size):
            display.write(f"data.vocab_size = {size:,} has no effect: {data.tokenizer} has {n_subwords:,} subwords")
    if reuse:
        return task.load_tokenizer(run.tokenizer_file)
    tokenizer = existing
    if tokenizer is None:
        task.check_texts(text_files)
        is_pair = task.data_kind == "pairs" and task.has_separate_vocabularies(data)
        which = f"two {data.tokenizer} tokenizers, each" if is_pair else f"the {data.tokenizer} tokenizer"
        display.write(f"training {which} with at most {data.vocab_size:,} subwords")
        with display.work(f"training the {data.tokenizer} tokenizer") as work:
            tokenizer = task.train_tokenizer(data, text_files["train"])
        n_subwords = f"{tokenizer.src_vocab_size or tokenizer.vocab_size:,} subwords"
        trained = (
            f"two tokenizers with {describe_vocabularies(tokenizer, task)}"
            if is_pair
            else f"a tokenizer with {n_subwords}"
        )
        display.write(f"trained {trained} in {work.seconds:.1f} s")
    return tokenizer


def check_vocabularies(tokenizer: TextTokenizer, config: RunConfig, task: Task) -> None:
    """Raise UserError unless this existing tokenizer has as many vocabularies as data.vocabularies requires."""
    has_two = tokenizer.src_vocab_size is not None
    if has_two != task.has_separate_vocabularies(config.data):
        choices = ("shared", "separate")
        raise UserError(
            f"data.vocabularies: expected {choices[has_two]} with {config.data.tokenizer}; got {choices[not has_two]}; "
            f'try --set data.vocabularies={choices[has_two]}, or data.tokenizer = "bpe", which trains a new tokenizer'
        )


def prepare_corpora(
    run: RunFolder, config: RunConfig, text_files: TextFiles, tokenizer: TextTokenizer, display: Display
) -> dict[str, Corpus]:
    """Return {part: token arrays} for the parts "train" and, if there is such a text, "valid"."""
    data, task = config.data, TASKS[config.data.task]
    corpora: dict[str, Corpus] = {}
    for part in sorted(text_files, reverse=True):  # "valid" first, because errors in this smaller text show sooner
        folder = run.data_path(part, data.prepared)
        with display.work(f"preparing the {part} text", "examples") as work:
            start = partial(display.write, f"preparing the {part} text: {', '.join(text_files[part])}")
            on_progress = partial(report_progress, work, start)
            corpora[part] = task.prepare(text_files[part], tokenizer, folder, data.max_length, on_progress)
        if work.done:
            display.write(f"prepared the {part} text: {work.result()}")
        else:
            display.write(f"using the token arrays in {folder}, which are up to date")
    return corpora


def report_progress(work: Work, start: Callable[[], object], n_done: int) -> None:
    """Set the number of completed items to `n_done`, and call `start` if none was completed before."""
    if not work.done:
        start()
    work.set_done(n_done)


def check_best_metric(config: RunConfig, task: Task, text_files: TextFiles) -> None:
    """Raise UserError if this run's validations do not measure the metric of train.best_metric or train.patience."""
    metric = config.train.best_metric or task.selection_metric
    metrics = [name for name in METRICS if name in ("loss", *task.scores)]
    if config.train.keep_best > 1 and not metric:
        got = f"keep_best = {config.train.keep_best} without a metric"
        raise UserError(f"train.best_metric: expected {' or '.join(metrics)}; got {got}; try best_metric = loss")
    option = f"--{task.file_keys['valid'][0].replace('_', '-')} F"
    if config.train.patience and "valid" not in text_files:
        raise UserError(
            f"train.patience: expected a validation text on which to measure {metric or 'the loss'}; got no file; "
            f"try {option}, or train.patience = 0"
        )
    if config.train.best_metric and metric not in metrics:
        expected = f"{' or '.join(metrics)} for the task {task.name}"
        raise UserError(f"train.best_metric: expected {expected}; got {metric}; try best_metric = loss")
    if config.train.best_metric and "valid" not in text_files:
        expected = f"a validation text on which to measure {metric}"
        raise UserError(f"train.best_metric: expected {expected}; got no file; try {option}")
    if metric not in ("", "loss") and "valid" in text_files and not config.train.validate_score:
        expected = f"true, because {metric} selects the best checkpoints"
        raise UserError(f"train.validate_score: expected {expected}; got false; try best_metric = loss")


def check_init_unchanged(run: RunFolder, init: str) -> None:
    """Raise UserError if a run with checkpoints is resumed with a different train.init."""
    if not (init and run.step_paths() and run.config_file.exists()):
        return
    if os.path.abspath(init) != os.path.abspath(stored := run.load_config().train.init):
        raise UserError(
            f'train.init: expected "{stored}" as in {run.config_file}; got "{init}", but only a new run reads '
            "train.init; try a new run with --out"
        )


def check_model(config: RunConfig, task: Task) -> None:
    """Raise UserError for a model that cannot be built, does not fit the task or cannot read data.max_length tokens."""
    separate = {"src_vocab_size": config.data.vocab_size} if task.has_separate_vocabularies(config.data) else {}
    try:
        model_config = config.transformer_config(config.data.vocab_size, **separate)
    except ValueError as error:
        raise UserError(f"model.{error}") from None
    architectures = [name for name, model in ARCHITECTURES.items() if model.data_kind == task.data_kind]
    if model_config.architecture not in architectures:
        raise UserError(
            f"model.architecture: expected {' or '.join(architectures)} for the task {task.name}; "
            f"got {model_config.architecture}; try {architectures[0]}"
        )
    for name in ("token_types", "embedding_norm", "pooler", "output_transform"):
        if getattr(model_config, name) and model_config.architecture != "encoder":
            raise UserError(
                f"model.{name} applies only to the architecture encoder, not to {model_config.architecture}; "
                f"omit {name}"
            )
    check_regularization(config, task, model_config)
    if config.train.gradient_checkpointing and model_config.n_experts:
        key = "gradient_checkpointing"
        raise UserError(f"train.{key}: expected false for a model with experts; got true; try {key} = false")
    abstract_model = model_config.build_abstract()
    names = [name for name, _ in abstract_model.named_parameters()]
    select_parameters("train.init_parameters", config.train.init_parameters, names)
    select_frozen(config.train.freeze, names)
    if config.train.init_parameters and not config.train.init:
        raise UserError("train.init_parameters has no effect without train.init; try --init RUN")
    longest = abstract_model.max_length
    if longest is not None and config.data.max_length > longest:
        raise UserError(
            f"data.max_length: expected at most model.max_positions = {longest} with learned positions; "
            f"got {config.data.max_length}; try max_length = {longest}"
        )


def check_regularization(config: RunConfig, task: Task, model_config: TransformerConfig) -> None:
    """Raise UserError for R-Drop without dropout, and for BPE dropout without pairs or a BPE tokenizer."""
    settings = config.train
    c = model_config
    rates = (c.dropout, c.attention_dropout, c.activation_dropout, c.word_dropout, c.stochastic_depth)
    if settings.rdrop_weight and not any(rates):
        raise UserError(
            "train.rdrop_weight: expected a model with dropout, so that the two passes differ; got a model in which "
            "every dropout rate is 0; try --set model.dropout=0.1"
        )
    if settings.bpe_dropout and task.data_kind != "pairs":
        raise UserError(f"train.bpe_dropout: expected a task on pairs; got {task.name}; try --set train.bpe_dropout=0")
    kind = config.data.tokenizer
    if settings.bpe_dropout and kind != "bpe" and kind in task.tokenizers:
        raise UserError(
            f"train.bpe_dropout: expected data.tokenizer bpe; got {kind}; try --set data.tokenizer=bpe, or "
            "--set train.bpe_dropout=0"
        )
