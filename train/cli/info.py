"""`info`: print the size and cost of a model, compared with the paper's, and the progress of a run."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from models import TransformerConfig
from train.cli.app import Device, app, use_device
from train.cli.models import resolve_model
from train.cli.options import VocabSize, number_option, print_stderr
from train.errors import NoCheckpoint, UserError, plural
from train.run.config import RunConfig
from train.run.folder import RunFolder, step_of

N_SPECIAL = 4  # number of special ids, which come before the labels
LANGUAGES = {"en-de": "English-German", "en-fr": "English-French"}


@app.command(
    epilog="FLOP counts include every multiplication and addition. The paper's cost is its training time x 8 GPUs x"
    " 9.5 TFLOP/s."
)
def info(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|CONFIG.toml|PRESET...",
            help="Run folders, configuration files or presets.",
            show_default=False,
        ),
    ],
    vocab_size: VocabSize = None,
    print_config: Annotated[
        bool, typer.Option("--config", help="Print the complete configuration with comments.")
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Time a few updates to estimate the training time.")
    ] = False,
    tokens_per_second: Annotated[
        float | None,
        number_option(
            float, "(0, 1e12]", metavar="X", help="Estimate the training time from this speed (source + target tokens)."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Use the vocabulary and maximum length of a folder written by `data`."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Override a key of CONFIG or PRESET; may be repeated."),
    ] = None,
    device: Device = "cpu",
) -> None:
    """Print a model's parameters, FLOPs and memory next to the paper's; for a run, also its validation curve."""
    if measure and tokens_per_second:
        raise UserError("info: --measure cannot be combined with --tokens-per-second; try only one of them")
    if print_config and models[1:]:
        raise UserError(f"info: --config prints one configuration; got {len(models)} models; try only one of them")
    for i, model_spec in enumerate(models):
        if models[1:]:
            print(f"{chr(10) * (i > 0)}name         {model_spec}")
        print_info(model_spec, vocab_size, print_config, measure, tokens_per_second, data, overrides or (), device)


def print_info(
    model_spec: str,
    vocab_size: int | None,
    print_config: bool,
    measure: bool,
    tokens_per_second: float | None,
    data: Path | None,
    overrides: Sequence[str],
    device: str,
) -> None:
    """Print the information about one model; the arguments are those of the command."""
    from train.run.checkpoint import (
        check_tokenizer,
        find_and_read,
        is_imported,
        read_state,
        task_of,
        warn_of_old_average,
    )

    run, run_config, model_config = resolve_model(model_spec, vocab_size, overrides, data)
    loaded: Path | None = None
    if run:
        if overrides or data:
            option = "--set" if overrides else "--data"
            raise UserError(
                f"{option} applies only to presets and configuration files; {model_spec} is a run; omit {option}"
            )
        with suppress(NoCheckpoint):
            loaded, state = find_and_read(model_spec, read_state)
    if run and loaded:
        warn_of_old_average(model_spec, loaded, state, print_stderr)
        if run.tokenizer_file.is_file():
            check_tokenizer(task_of(state).load_tokenizer(run.tokenizer_file), state, run.tokenizer_file)
    if print_config:
        print(run_config.dump(), end="")
        return
    origin = "as given"
    activations = None
    if measure:
        from train.experiments.speed import measure_activations, measure_speed
        from train.progress import Display

        use_device(device)
        with Display() as display, display.work("measuring the speed of a few updates"):
            display.write("measuring the speed of a few updates")
            tokens_per_second = measure_speed(model_config, run_config)
            origin = "measured here"
            activations = measure_activations(model_config, run_config)
    last = last_update(run, run.metrics()) if run else None
    updates = last["step"] if last else 0 if run and is_imported(run) else None
    lines = describe(model_config, run_config, updates, activations)
    for line in chain(lines, describe_run(run, run_config, loaded) if run else ()):
        print(line)
    if tokens_per_second:
        from train.experiments.speed import training_hours

        hours = training_hours(tokens_per_second, run_config)
        print(f"time         {describe_time(hours)} for {plural(run_config.train.max_steps, 'update')}"
              f" at {tokens_per_second:,.0f} tokens/s, {origin}")  # fmt: skip


def describe_time(hours: float) -> str:
    """Return a time in seconds, minutes or hours, as text. Times of 48 hours and more are also given in days."""
    if hours < 1:
        return f"{60 * hours:,.0f} minutes" if hours >= 1 / 30 else f"{3600 * hours:,.1f} seconds"
    return f"{hours:,.1f} hours" + (f" ({hours / 24:,.1f} days)" if hours >= 48 else "")


def describe(
    model_config: TransformerConfig, config: RunConfig, updates: int | None = None, activations: float | None = None
) -> Iterator[str]:
    """Yield lines about a model's parameters, FLOPs and memory; an unchanged preset is compared with the paper.

    `updates` is the number of updates that a run has made, 0 if it was imported; None stands for train.max_steps.
    `activations` is the additional memory that an update takes, in bytes, if it has been measured.
    """
    import npx
    from train.experiments.paper import TABLE2_ROWS, TABLE3
    from train.learn.memory import count_trained, training_memory
    from train.tasks import TASKS

    preset, t, task = config.model.preset, config.train, TASKS[config.data.task]
    sides = task.sides
    is_changed = model_config != type(model_config).preset(preset, model_config.vocab_size)
    paper = {} if is_changed else TABLE3.get(preset, {})
    language_pairs, table2_row = ((), {}) if is_changed else TABLE2_ROWS.get(preset, ((), {}))
    n = model_config.n_parameters()
    tokens = t.batch_tokens * t.gradient_accumulation_steps
    is_read = "source" in sides or model_config.architecture == "encoder"
    update_flops = model_config.training_flops(tokens if is_read else 0, task.n_targets(tokens, config))
    precision = npx.precision_named(t.precision)
    n_trained = count_trained(model_config, t.freeze)
    memory = training_memory(n, n_trained, precision, bool(t.ema_decay))
    total = sum(memory.values())
    unit, unit_size = memory_unit(total)
    parts = ", ".join(f"{name} {size / unit_size:,.0f}" for name, size in memory.items())
    frozen = f", {n - n_trained:,} of them frozen" if n_trained < n else ""
    c = model_config
    sizes = f"N {c.n_layers}, d_model {c.d_model}, d_ff {c.d_ff}, heads {c.n_heads}, "
    sizes += f"d_k {c.key_size}, d_v {c.value_size}, dropout {c.dropout}"
    paper_size = f"   (the paper: {paper['params_millions']:g} million)" if paper else ""
    paper_cost = f"   (the paper: {float(table2_row[f'{language_pairs[0]} FLOPs']):.1e})" if language_pairs else ""
    yield f"model        {preset}{' with changes' if is_changed else ''}: {sizes}"
    has_attention = c.architecture in ("encoder_decoder", "decoder", "encoder")
    details = f", norm {c.norm_placement}, positions {c.positions}" if has_attention else ""
    yield f"architecture {c.architecture}{details}, for the task {task.name}"
    yield f"vocabulary   {describe_vocabulary(model_config, sides)}"
    yield f"parameters   {n:,}{frozen}{paper_size}"
    note = ", as if no parameter were frozen" if frozen else ""
    yield f"operations   {update_flops / tokens / len(sides):.3g} FLOPs per training token{note}"
    yield f"update       {update_flops:.3g} FLOPs for {' and '.join(f'{tokens:,} {side}' for side in sides)} tokens"
    done = t.max_steps if updates is None else updates
    all_updates = plural(t.max_steps, "update")
    in_updates = f"{done:,} of {all_updates}" if done < t.max_steps else plural(done, "update")
    if done:
        yield f"training     {update_flops * done:.2g} FLOPs in {in_updates}{paper_cost}"
    yield f"memory       {total / unit_size:,.0f} {unit}: {parts}; activations not included"
    if activations is not None:
        batch = " and ".join(f"{t.batch_tokens:,} {side}" for side in sides)
        unit, unit_size = memory_unit(activations)
        yield f"activations  about {activations / unit_size:,.0f} {unit} for a batch of {batch} tokens"
    if paper:
        yield (f"quality      the paper on newstest2013 English-German: perplexity {paper['ppl']:.2f},"
               f" BLEU {paper['bleu']:.1f}")  # fmt: skip
    for pair in language_pairs:
        yield f"quality      the paper on newstest2014 {LANGUAGES[pair]}: BLEU {table2_row[pair]}"


def memory_unit(n_bytes: float) -> tuple[str, int]:
    """Return the unit for printing `n_bytes`, and its size in bytes: MiB from 10 MiB on, otherwise KiB."""
    return ("MiB", 2**20) if n_bytes >= 10 * 2**20 else ("KiB", 2**10)


def describe_vocabulary(model_config: TransformerConfig, sides: tuple[str, ...]) -> str:
    """Describe the sizes of the vocabularies, and which embeddings and projections share a matrix."""
    sizes = f"{model_config.vocab_size:,} tokens"
    if model_config.architecture == "encoder" and model_config.src_vocab_size is not None:
        return f"{model_config.src_vocab_size:,} tokens of the text, {model_config.vocab_size - N_SPECIAL:,} labels"
    if model_config.src_vocab_size is not None:
        sizes = f"{model_config.src_vocab_size:,} source and {model_config.vocab_size:,} target tokens"
    if model_config.shares_source or (len(sides) == 1 and model_config.tying != "none"):
        return f"{sizes}, one matrix for {', '.join(sides)} and output"
    if model_config.tying == "none":
        return f"{sizes}, {len(sides) + 1} matrices for {', '.join(sides)} and output"
    return f"{sizes}, one matrix for target and output, another for source"


def has_metrics(entry: dict[str, Any], kind: str, *names: str) -> bool:
    """Return whether an entry of metrics.jsonl is of the given kind and has a number for each of the `names`."""
    return entry["kind"] == kind and all(type(entry.get(name)) in (int, float) for name in names)


def last_update(run: RunFolder, entries: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the step, tokens, loss and mean speed at the last log line or, if it is later, the newest checkpoint.

    The speed is the mean over all updates, in tokens per second. The checkpoint is later if training stopped between
    two log lines.
    """
    from train.run.checkpoint import newest_state

    logged = [entry for entry in entries if has_metrics(entry, "train", "tokens", "loss", "seconds")]
    totals = newest_state(run)
    if totals and totals.window_tokens and totals.step > (logged[-1]["step"] if logged else 0):
        last = {"step": totals.step, "tokens": totals.tokens, "loss": totals.loss, "seconds": totals.seconds}
    elif logged:
        last = logged[-1]
    else:
        return None
    return last | {"tokens_per_second": last["tokens"] / max(last["seconds"], 1e-9)}


def describe_run(run: RunFolder, config: RunConfig, loaded: Path | None) -> Iterator[str]:
    """Yield lines about a run: its checkpoints, tokenizer, progress and validation curve.

    `loaded` is the checkpoint that commands load.
    """
    from train.progress import format_metric
    from train.run.checkpoint import find_and_read, read_state
    from train.run.folder_swap import original_name
    from train.run.report import describe_vocabularies
    from train.tasks import TASKS

    task = TASKS[config.data.task]
    steps = [str(step_of(path)) for path in run.step_paths()]
    names = "".join(f", {original_name(path)}" for path in run.weights_only_paths())
    listed = f"steps {', '.join(steps) or 'none'}{names}; commands load {loaded.name}" if loaded else "none yet"
    yield f"checkpoints  {listed}"
    if run.tokenizer_file.is_file():
        tokenizer = task.load_tokenizer(run.tokenizer_file)
        yield f"tokenizer    {describe_vocabularies(tokenizer, task)}, digest {tokenizer.digest[:12]}"
    entries = run.metrics()
    if last := last_update(run, entries):
        updates = plural(last["step"], "update")
        speed = f"{last['tokens_per_second']:,.0f} tokens/s"
        yield f"trained      {updates}, {last['tokens']:,} tokens, loss {last['loss']:.4f}, {speed}"
    if not (curve := [entry for entry in entries if has_metrics(entry, "valid", "loss", "perplexity")]):
        return
    best_step = find_and_read(run.best_path, read_state)[1]["step"] if run.best_path.is_dir() else None
    measured = {name: title for name, title in task.scores.items() if any(name in entry for entry in curve)}
    widths = {name: max(7, len(title) + 2) for name, title in measured.items()}
    titles = "".join(f"{title:>{widths[name]}}" for name, title in measured.items())
    yield f"validation     step     loss  perplexity{titles}"
    for entry in curve:
        scores = "".join(
            f"{entry[name]:{width}.2f}" if has_metrics(entry, "valid", name) else f"{'-':>{width}}"
            for name, width in widths.items()
        )
        mark = "  checkpoints/best" if entry["step"] == best_step else ""
        perplexity = format_metric(entry["perplexity"])
        yield f"           {entry['step']:8,} {entry['loss']:8.4f} {perplexity:>11}{scores}{mark}"
