"""`plan`: how long a step takes on more GPUs than there are here."""

from typing import Annotated

import typer

from npx.ranges import Range
from train.cli.app import app
from train.cli.options import VOCABULARY, number, ranged
from train.errors import UserError, nearest

LINKS = ("nvlink", "ib", "ethernet")


@app.command(
    epilog="A model of costs (train/experiments/plan.py): the sum of gradients beside backward. The links are"
    " nominal figures. Example: [b]npx-transformer plan base --tokens-per-second 200000[/b]."
)
def plan(
    what: Annotated[str, typer.Argument(metavar="RUN|PRESET", help="Run folder or preset.", show_default=False)],
    gpus: Annotated[str, typer.Option(metavar="K,K,...", help="How many GPUs.")] = "1,8,64,512",
    link: Annotated[str, ranged(Range(str, choices=LINKS), metavar="|".join(LINKS), help="What joins them.")] = "ib",
    tokens_per_second: Annotated[
        float | None,
        number(float, "(0, 1e12]", metavar="X", help="Source + target tokens a second of one GPU; default: the run's."),
    ] = None,
    bandwidth: Annotated[
        float | None, number(float, "(0, 1e6]", metavar="GB/s", help="Of a GPU in one direction; default: the link's.")
    ] = None,
    latency: Annotated[
        float | None, number(float, "[0, 1e9]", metavar="US", help="Microseconds; default: the link's.")
    ] = None,
    vocab_size: Annotated[
        int | None, number(int, VOCABULARY, metavar="V", help="Types of a preset's vocabulary; default: 37000.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="train.KEY=VALUE", help="Overrides a key of training; may be repeated."),
    ] = None,
) -> None:
    """Say how long a step would take on many GPUs, from the speed of one."""
    from models import PRESETS
    from npx.precision import precision_named
    from train.cli.info import has
    from train.experiments.plan import LINKS as KNOWN
    from train.experiments.plan import planned, table
    from train.run.checkpoint import find_checkpoint, model_config, read_state
    from train.run.config import RunConfig
    from train.run.folder import RunFolder
    from train.tasks import TASKS

    run, numbers = RunFolder(what), [k.strip() for k in gpus.split(",")]
    if not all(k.isdecimal() and 1 <= int(k) <= 10**6 for k in numbers):
        raise UserError(f"--gpus: expected numbers from 1 to 1,000,000, with commas; got {gpus[:60]}; try 1,8,64")
    for setting in settings or ():
        if not setting.strip().startswith("train."):
            raise UserError(f"--set: expected a key of [train]; got {setting[:60]}; try --set train.shard=true")
    if run.path.is_dir() and run.config_file.is_file():
        if vocab_size is not None:
            raise UserError(f"--vocab-size: expected it for a preset alone; got it for {what}; try without it")
        config, shape = RunConfig.load(run.config_file, settings or ()), model_config(read_state(find_checkpoint(what)))
        trained = [entry for entry in run.metrics() if has(entry, "train", "tokens_per_second")]
        if tokens_per_second is None and trained:
            tokens_per_second = trained[-1]["tokens_per_second"]
    elif what in PRESETS:
        types = {"vocab_size": vocab_size or 37000}
        config = RunConfig.from_dict({"model": {"preset": what}, "data": types}, settings or ())
        shape = config.transformer_config(types["vocab_size"])
    else:
        raise UserError(f"{what}: expected a run folder or a preset; got neither; try {nearest(what, PRESETS)}")
    if not tokens_per_second:
        raise UserError(
            "plan: expected --tokens-per-second, measured on one GPU; got none; "
            "try npx-transformer info PRESET --measure"
        )
    own = KNOWN[link]
    own = own._replace(
        bandwidth=own.bandwidth if bandwidth is None else bandwidth * 1e9,
        latency=own.latency if latency is None else latency * 1e-6,
    )
    t, n = config.train, shape.n_parameters()
    precision = precision_named(t.precision)
    width = precision.weight_dtype.itemsize
    size = width * n  # of the gradient, which is summed in the weights' dtype
    way = {
        "narrow": 1.0 if t.reduce_dtype == "float32" else 2 / width,
        "gathered": t.shard * n * (2 if precision.is_mixed else width),
    }
    micro = t.batch_tokens * len(TASKS[config.data.task].sides)
    last = shape.vocab_size * shape.d_model / n
    plans = [planned(size, last, micro / tokens_per_second, t.accumulate, int(k), own, **way) for k in numbers]
    print(f"gradient     {size / 2**20:,.0f} MiB, of which {100 * last:.0f} % come last (the embedding)")
    print(f"a GPU        {micro:,} tokens a micro-batch, {t.accumulate} a step, {tokens_per_second:,.0f} tokens/s; "
          "k GPUs make steps of k times as many tokens")  # fmt: skip
    print(f"link         {own.what if bandwidth is latency is None else 'as given'}: "
          f"{own.bandwidth / 1e9:,.4g} GB/s, {own.latency * 1e6:,.4g} us")  # fmt: skip
    if t.shard or t.reduce_dtype != "float32":
        print(f"ranks        {'each updates its part (train.shard)' if t.shard else 'all update all'}; "
              f"gradients travel as {t.reduce_dtype}")  # fmt: skip
    for line in table(plans, micro * t.accumulate):
        print(line)
    if what in ("base", "big"):
        seconds = {"base": 0.4, "big": 1.0}[what]
        print(f"the paper    {seconds} s a step of about 50,000 tokens on 8 P100")
