"""`plan`: estimate the time and cost of training on many GPUs from the speed of one GPU."""

from itertools import takewhile
from typing import Annotated

import typer

from npx.ranges import Range
from train.cli.app import app
from train.cli.info import last_update
from train.cli.models import resolve_model
from train.cli.options import VocabSize, checked_option, number_option
from train.errors import UserError, quote

LINK_NAMES = ("nvlink", "ib", "ethernet")
PAPER_SECONDS = {"base": 0.4, "big": 1.0}  # seconds per step (section 5.2)


@app.command(
    epilog="The cost model (train/experiments/plan.py) assumes that the gradient all-reduce overlaps with the backward"
    " pass. Link figures are nominal. Example: [b]npx-transformer plan base --tokens-per-second 200000[/b]."
)
def plan(
    model_spec: Annotated[str, typer.Argument(metavar="RUN|PRESET", help="Run folder or preset.", show_default=False)],
    gpus: Annotated[str, typer.Option(metavar="K,K,...", help="Numbers of GPUs.")] = "1,8,64,512",
    link: Annotated[
        str,
        checked_option(Range(str, choices=LINK_NAMES), metavar="|".join(LINK_NAMES), help="Link between the GPUs."),
    ] = "ib",
    tokens_per_second: Annotated[
        float | None,
        number_option(
            float,
            "(0, 1e12]",
            example="20000",
            metavar="X",
            help="Source + target tokens per second of one GPU; default: the speed measured in the run.",
        ),
    ] = None,
    bandwidth: Annotated[
        float | None,
        number_option(
            float,
            "(0, 1e6]",
            metavar="GB/s",
            help="Bandwidth of a GPU in each direction; default: nominal value of the link.",
        ),
    ] = None,
    latency: Annotated[
        float | None,
        number_option(
            float, "[0, 1e9]", metavar="US", help="Latency in microseconds; default: nominal value of the link."
        ),
    ] = None,
    price: Annotated[
        float | None,
        number_option(
            float, "[0, 1e6]", metavar="X", help="Price of one GPU-hour; if given, print the cost of the training too."
        ),
    ] = None,
    vocab_size: VocabSize = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="train.KEY=VALUE", help="Override a training key; may be repeated."),
    ] = None,
) -> None:
    """Estimate the time and cost of training on many GPUs from the speed of one GPU."""
    from npx.precision import precision_named
    from train.experiments.plan import LINKS, estimate_step, table, training_table
    from train.tasks import TASKS

    counts = [k.strip() for k in gpus.split(",")]
    if not all(k.isdecimal() and 1 <= int(k) <= 10**6 for k in counts):
        raise UserError(
            f"--gpus: expected numbers from 1 to 1,000,000, separated by commas; got {gpus[:60]}; try 1,8,64"
        )
    for override in overrides or ():
        if not override.strip().startswith("train."):
            raise UserError(
                f"--set: expected a key of [train]; got {override[:60]}; try --set train.shard_optimizer=true"
            )
    run, config, model_config = resolve_model(model_spec, vocab_size, overrides or ())
    if tokens_per_second is None and run and (last := last_update(run, run.metrics())):
        is_parallel = any("network" in entry for entry in run.metrics())  # then the speed is that of all ranks
        tokens_per_second = None if is_parallel else last["tokens_per_second"]
    if not tokens_per_second:
        can_measure = config.data.task == "translation"
        suggestion = f"`npx-transformer info {quote(model_spec)} --measure`" if can_measure else "--tokens-per-second X"
        raise UserError(f"plan: --tokens-per-second, measured on one GPU, is missing; try {suggestion}")
    nominal = LINKS[link]
    link_figures = nominal._replace(
        bandwidth=nominal.bandwidth if bandwidth is None else bandwidth * 1e9,
        latency=nominal.latency if latency is None else latency * 1e-6,
    )
    model = model_config.build_abstract()
    t, n = config.train, model.n_parameters()
    precision = precision_named(t.precision)
    weight_bytes = precision.weight_dtype.itemsize
    gradient_bytes = weight_bytes * n  # sums have the weights' dtype
    reduction_options = {
        "wire_fraction": 1.0 if t.reduce_dtype == "float32" else 2 / weight_bytes,
        "gathered_bytes": t.shard_optimizer * n * (2 if precision.is_mixed else weight_bytes),
    }
    n_micro_batches = t.gradient_accumulation_steps
    tokens = t.batch_tokens * len(TASKS[config.data.task].sides)  # tokens of a micro-batch
    # The flat buffer begins with the embeddings; the other parameters belong to layers, which have numbers.
    first = takewhile(lambda item: not any(map(str.isdigit, item[0].split("."))), model.named_parameters())
    late_fraction = sum(p.size for _, p in first) / n
    micro_batch_seconds = tokens / tokens_per_second
    estimates = [
        estimate_step(
            gradient_bytes, late_fraction, micro_batch_seconds, n_micro_batches, int(k), link_figures,
            **reduction_options,
        )
        for k in counts
    ]  # fmt: skip
    print(f"gradient     {gradient_bytes / 2**20:,.0f} MiB, of which {100 * late_fraction:.0f}% is ready last "
          "(embeddings)")  # fmt: skip
    print(f"one GPU      {tokens:,} tokens per micro-batch, train.gradient_accumulation_steps {n_micro_batches}, "
          f"{tokens_per_second:,.0f} tokens/s; "
          "a step on k GPUs has k times as many tokens")  # fmt: skip
    print(f"link         {link_figures.name if bandwidth is None and latency is None else 'as given'}: "
          f"{link_figures.bandwidth / 1e9:,.4g} GB/s, {link_figures.latency * 1e6:,.4g} us")  # fmt: skip
    if t.shard_optimizer or t.reduce_dtype != "float32":
        updated = "its shard (train.shard_optimizer)" if t.shard_optimizer else "all weights"
        print(f"ranks        each updates {updated}; gradients are sent as {t.reduce_dtype}")
    for line in (*table(estimates, tokens * n_micro_batches), "", *training_table(estimates, t.max_steps, price)):
        print(line)
    if model_spec in PAPER_SECONDS:
        print(f"the paper    {PAPER_SECONDS[model_spec]} s per step of about 50,000 tokens on 8 P100")
