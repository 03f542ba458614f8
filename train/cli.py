"""The command line `npx-transformer`: each command reads its options, checks them and calls one function of `train`.

Exit status: 0 done, 2 the user's mistake (one line on stderr), 1 a fault of ours (traceback), 130 after Ctrl-C, 141
where the reader of a pipe has gone. Next: `train/run.py` for what `train` does, `train/demo.py` for the whole way.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from train.errors import UserError

PAPER_COST = {"base": 3.3e18, "big": 2.3e19}  # Table 2, FLOPs of the whole training, English-German
CLICK_ERROR: Any = typer.BadParameter.__mro__[2]  # click's, or the one of the copy that newer typers carry
FULL = (errno.ENOSPC, errno.EDQUOT)


class Commands(typer.core.TyperGroup):
    """All commands; what comes of a stdout that takes no more is settled here, before click sees it."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except OSError as error:
            if error.filename is None and error.errno in (errno.EPIPE, *FULL):
                with suppress(OSError, ValueError):  # or Python fails once more when it flushes stdout at the end
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if error.errno == errno.EPIPE:
                raise typer.Exit(141) from None
            raise


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train the Transformer of [i]Attention Is All You Need[/i] on pairs of sentences, translate, score.",
    epilog="Start with [b]npx-transformer demo[/b]. A command's own help: [b]npx-transformer train --help[/b].",
)
Device = Annotated[str, typer.Option(help="Where to compute: cpu (NumPy) or cuda (CuPy).", metavar="cpu|cuda")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of `train`.", show_default=False)]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status; `argv` defaults to the process's arguments."""
    try:
        result = app(args=argv if argv is None else list(argv), prog_name="npx-transformer", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except UserError as error:
        return fail(str(error))
    except CLICK_ERROR as error:  # no such option, a value of the wrong kind: two or three lines of click's made one
        command = getattr(getattr(error, "ctx", None), "command_path", "npx-transformer")
        return fail(f"{error.format_message().rstrip('.')}; try {command} --help")
    except KeyboardInterrupt:
        return 130
    except MemoryError:
        return fail("memory: expected more of it; got none left; try a smaller batch_tokens in [train] or [search]")
    except OSError as error:
        if error.errno is None or error.filename is None and error.errno not in FULL:
            return fault()
        what = error.filename or "output"
        return fail(f"{what}: expected to read or write it; got '{error.strerror}'; try another path or more room")
    except Exception:
        return fault()


def fail(message: str) -> int:
    """Says the user's mistake in one line; exit status 2."""
    print(f"npx-transformer: {' '.join(message.split())}", file=sys.stderr)
    return 2


def fault() -> int:
    """Shows where we failed; exit status 1."""
    traceback.print_exc()
    print("npx-transformer: this is a fault of the program, not yours; please report the lines above", file=sys.stderr)
    return 1


def print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        with suppress(PackageNotFoundError):
            print(f"npx-transformer {version('npx-transformer')}")
            raise typer.Exit
        print("npx-transformer, not installed (run from its source)")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def common(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if ctx.invoked_subcommand is None:
        print(ctx.get_help(), end="")


def use_device(name: str) -> None:
    import npx

    npx.tune()
    try:
        npx.use_device(name)
    except (ValueError, RuntimeError) as error:
        raise UserError(str(error)) from None


# ---- demo


@app.command(epilog="Needs num2words and matplotlib: pip install 'npx-transformer[demo]'. About 3 minutes on 2 cores.")
def demo(
    out: Annotated[Path, typer.Option(help="New folder for texts, run and attention.png.")] = Path("demo-run"),
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Fixes the numbers drawn and the training.")] = 1,
) -> None:
    """Learn to translate English number words into German ones, from nothing, and show how well and how."""
    from train.demo import run_demo

    run_demo(out, seed)


# ---- train


@app.command(
    epilog="Every key of CONFIG with its meaning: [b]npx-transformer info base --config[/b]. Ctrl-C finishes the step"
    " and writes a checkpoint; --resume goes on from it, to the same weights as if it had never stopped."
)
def train(
    out: Annotated[Path, typer.Option(metavar="RUN", help="Run folder to write.", show_default=False)],
    config: Annotated[
        str | None,
        typer.Argument(metavar="CONFIG.toml|PRESET", help="May be left out with --resume.", show_default=False),
    ] = None,
    train_src: Annotated[str | None, typer.Option(metavar="F", help="Training text, source language.")] = None,
    train_tgt: Annotated[str | None, typer.Option(metavar="F", help="Training text, target language.")] = None,
    valid_src: Annotated[str | None, typer.Option(metavar="F", help="Validation text, source language.")] = None,
    valid_tgt: Annotated[str | None, typer.Option(metavar="F", help="Validation text, target language.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Overrides a key; may be repeated.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint of RUN.")] = False,
    device: Device = "cpu",
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress; log.txt and metrics.jsonl as always.")] = False,
) -> None:
    """Train a model on two files of which line i translates line i."""
    from train.config import to_toml
    from train.run import train as train_run

    use_device(device)
    texts = {"train_src": train_src, "train_tgt": train_tgt, "valid_src": valid_src, "valid_tgt": valid_tgt}
    changes = [*(settings or ()), *(f"data.{name}={to_toml(path)}" for name, path in texts.items() if path is not None)]
    run_config = read_config(config, changes, out, resume)
    summary = train_run(run_config, out, resume=resume, progress=not quiet)
    print(f"{out}: stopped after step {summary.step} ({summary.stopped})", file=sys.stderr)


def read_config(config: str | None, changes: list[str], out: Path, resume: bool) -> Any:
    """The configuration of a training: from a file, by a preset's name, or (to resume) from the run itself."""
    from models.config import PRESETS
    from train.config import RunConfig

    if resume and not (out / "config.toml").is_file():
        raise UserError(f"{out}: expected a run folder to resume; got {what_is(out)}; try it without --resume")
    if config is None and not resume:
        raise UserError("train: expected CONFIG.toml or a preset; got none; try npx-transformer train base --out RUN")
    if config is not None and config in PRESETS and not Path(config).exists():
        return RunConfig.from_dict({"model": {"preset": config}}, changes, where=config)
    return RunConfig.load(config or out / "config.toml", changes)


def what_is(path: Path) -> str:
    """What stands at a path, for a message."""
    if not path.exists():
        return "nothing"
    if not path.is_dir():
        return "a file"
    return "a folder that exists" if any(path.iterdir()) else "an empty folder"


# ---- translate


@app.command(
    epilog="Example: [b]echo 'A dog runs.' | npx-transformer translate --model runs/a[/b]. An empty line stays empty,"
    " so line i of the output is always the translation of line i."
)
def translate(
    model: Annotated[Path, typer.Option(metavar="RUN", help="Run folder, or one checkpoint.", show_default=False)],
    input: Annotated[Path | None, typer.Option(metavar="F", help="Text to translate; default: stdin.")] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="F", help="Where to; default: stdout. Written whole or not at all.")
    ] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Hypotheses a sentence; default: the run's.")] = None,
    alpha: Annotated[float | None, typer.Option(min=0, help="Length penalty's exponent; default: the run's.")] = None,
    penalty: Annotated[str | None, typer.Option(metavar="paper|length", help="Its form; default: the run's.")] = None,
    max_extra: Annotated[int | None, typer.Option(min=1, help="Tokens more than the source at most.")] = None,
    n_best: Annotated[
        int, typer.Option(min=1, metavar="K", help="K > 1: the K best as lines 'number ||| text ||| score'.")
    ] = 1,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Source tokens translated together.")] = None,
    device: Device = "cpu",
) -> None:
    """Translate text, a sentence a line."""
    from dataclasses import asdict

    from train.checkpoint import load_model
    from train.config import check, keys_of
    from train.errors import read_lines
    from train.translate import format_translation, translate_stream

    use_device(device)
    given = {"beam": beam, "alpha": alpha, "penalty": penalty, "max_extra": max_extra, "batch_tokens": batch_tokens}
    keys = keys_of("search")
    changes = {k: check("search", keys[k], value, "translate") for k, value in given.items() if value is not None}
    if input is not None and not input.is_file():
        raise UserError(f"{input}: expected a text file; got {what_is(input)}; try another --input, or none for stdin")
    network, tokenizer, config = load_model(model)
    search = asdict(config.search) | changes
    if n_best > search["beam"]:
        raise UserError(f"--n-best: expected at most the beam, {search['beam']}; got {n_best}; try --beam {n_best}")
    lines = chain.from_iterable(read_lines(input)) if input else stdin_lines()
    translated = translate_stream(
        network, tokenizer, lines, **search, n_best=n_best, on_warning=lambda text: print(text, file=sys.stderr)
    )
    with writer(output) as file:
        for index, translations in enumerate(translated):
            file.write(format_translation(translations, index, n_best) + "\n")


def stdin_lines() -> Iterator[str]:
    """Lines of standard input, ended by "\\n" alone, as they come."""
    for number, raw in enumerate(sys.stdin.buffer, 1):
        try:
            yield raw.decode("utf-8").removesuffix("\n")
        except UnicodeDecodeError as error:
            found = f"byte {raw[error.start]:#04x} at column {error.start + 1}"
            raise UserError(f"stdin, line {number}: expected UTF-8 text; got {found}; try `iconv -t UTF-8`") from None


@contextmanager
def writer(path: Path | None) -> Iterator[TextIO]:
    """stdout as UTF-8, or a file that appears under its name only when all of it is written."""
    if path is None:
        with open(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", newline="\n") as file:
            yield file
        return
    if path.is_dir() or not path.parent.is_dir():
        got = "a folder" if path.is_dir() else f"no folder {path.parent}"
        raise UserError(f"{path}: expected a file to write; got {got}; try another --output")
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "w", encoding="utf-8", newline="\n") as file:
            yield file
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


# ---- score, average


def read_all(path: Path) -> list[str]:
    """Every line of a text file."""
    from train.errors import read_lines

    return list(chain.from_iterable(read_lines(path)))


@app.command(epilog="Scores of different kinds are not comparable: quote the signature beside the figure.")
def score(
    ref: Annotated[Path, typer.Option(metavar="F", help="References, a sentence a line.", show_default=False)],
    hyp: Annotated[Path, typer.Option(metavar="F", help="Translations to score.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Print every BLEU with its signature, chrF and TER of a translation."""
    from train.scoring import print_report, report_json, score_report

    report = score_report(read_all(hyp), read_all(ref))
    if as_json:
        print(report_json(report))
    else:
        print_report(report)


@app.command(epilog="The paper averages the last 5 checkpoints of base and the last 20 of big (train.keep_last).")
def average(
    run: RunFolder,
    last: Annotated[int, typer.Option(min=1, help="How many of the newest checkpoints.")] = 5,
) -> None:
    """Average the weights of the last checkpoints; `translate` then takes the average."""
    from train.checkpoint import average_checkpoints

    print(average_checkpoints(run, last))


# ---- info


@app.command(epilog="Operations: every multiplication and addition. The paper's cost: its time x 8 GPUs x 9.5 TFLOP/s.")
def info(
    what: Annotated[str, typer.Argument(metavar="RUN|PRESET", help="Run folder or preset.", show_default=False)],
    vocab_size: Annotated[int, typer.Option(min=5, metavar="V", help="Types of a preset's vocabulary.")] = 37000,
    config: Annotated[bool, typer.Option("--config", help="Print the complete commented configuration.")] = False,
) -> None:
    """Print parameters, operations and memory beside the paper's figures; of a run also its curve and tokenizer."""
    from models.config import PRESETS, TransformerConfig
    from train.checkpoint import find_checkpoint, read_state
    from train.config import RunConfig, nearest

    run = Path(what)
    if run.is_dir():
        if not (run / "config.toml").is_file():
            raise UserError(f"{run}: expected a run folder; got one without config.toml; try the --out of a training")
        run_config = RunConfig.load(run / "config.toml")
        shape = TransformerConfig.from_dict(read_state(find_checkpoint(run))["model"])
    elif what in PRESETS:
        run_config = RunConfig.from_dict({"model": {"preset": what}, "data": {"vocab_size": vocab_size}})
        shape = run_config.transformer_config(vocab_size)
    else:
        presets = ", ".join(PRESETS)
        raise UserError(f"{what}: expected a run folder or one of {presets}; got neither; try {nearest(what, PRESETS)}")
    if config:
        print(run_config.dump(), end="")
        return
    for line in describe(shape, run_config):
        print(line)
    if run.is_dir():
        for line in describe_run(run):
            print(line)


def describe(shape: Any, config: Any) -> Iterator[str]:
    """Lines on a model's parameters, operations and memory; the paper's figures where it is a model of the paper."""
    from models.config import PRESETS

    preset, t = PRESETS[config.model.preset], config.train
    own = shape != type(shape).preset(config.model.preset, shape.vocab_size)
    paper: dict[str, Any] = {} if own else {"cost": PAPER_COST.get(config.model.preset), **preset.paper}
    n, tokens = shape.n_parameters(), t.batch_tokens * t.accumulate
    update = shape.training_flops(tokens, tokens)
    mib = n * (8 if t.precision == "float64" else 4) / 2**20
    low = n * 2 / 2**20 if t.precision in ("bf16", "fp16") else 0.0  # the copy that is computed with
    parts = f"parameters {mib:,.0f}, gradients {mib:,.0f}, Adam {2 * mib:,.0f}"
    parts += f", {t.precision} copy {low:,.0f}" if low else ""
    sizes = f"N {shape.n_layers}, d_model {shape.d_model}, d_ff {shape.d_ff}, heads {shape.n_heads}, "
    sizes += f"d_k {shape.key_size}, d_v {shape.value_size}, dropout {shape.dropout}"
    printed = f"   (the paper: {paper['params_millions']:g} million)" if "params_millions" in paper else ""
    cost = f"   (the paper: {paper['cost']:.1e})" if paper.get("cost") else ""
    yield f"model        {config.model.preset}{' with changes' if own else ''}: {sizes}"
    yield f"vocabulary   {shape.vocab_size:,} types, one matrix for source, target and output"
    yield f"parameters   {n:,}{printed}"
    yield f"operations   {update / tokens / 2:.3g} FLOP a training token"
    yield f"update       {update:.3g} FLOP for {tokens:,} source and {tokens:,} target tokens"
    yield f"training     {update * t.max_steps:.2g} FLOP in {t.max_steps:,} updates{cost}"
    yield f"memory       {4 * mib + low:,.0f} MiB: {parts}"
    if "ppl" in paper:
        yield f"quality      the paper on newstest2013 English-German: perplexity {paper['ppl']}, BLEU {paper['bleu']}"


def describe_run(run: Path) -> Iterator[str]:
    """Lines on what a run has done: checkpoints, validation curve and its best, tokenizer."""
    from train.checkpoint import list_checkpoints
    from train.tokenizer import Tokenizer

    steps = [path.name.removeprefix("step-") for path in list_checkpoints(run)]
    averaged = ", averaged" if (run / "checkpoints" / "averaged").is_dir() else ""
    yield f"checkpoints  steps {', '.join(steps) or 'none'}{averaged}"
    if (run / "tokenizer.json").is_file():
        tokenizer = Tokenizer.load(run / "tokenizer.json")
        yield f"tokenizer    {tokenizer.vocab_size:,} types, digest {tokenizer.digest[:12]}"
    metrics = run / "metrics.jsonl"
    entries = [json.loads(line) for line in metrics.read_text("utf-8").splitlines()] if metrics.is_file() else []
    if trained := [entry for entry in entries if entry["kind"] == "train"]:
        last = trained[-1]
        speed = f"{last['tokens_per_second']:,.0f} tokens/s"
        yield f"trained      {last['step']:,} updates, {last['tokens']:,} tokens, loss {last['loss']:.4f}, {speed}"
    if not (curve := [entry for entry in entries if entry["kind"] == "valid"]):
        return
    best = min(curve, key=lambda entry: entry["loss"])
    yield "validation     step     loss  perplexity   BLEU"
    for entry in curve:
        bleu = f"{entry['bleu']:6.2f}" if "bleu" in entry else "     -"
        mark = "  best" if entry is best else ""
        yield f"           {entry['step']:8,} {entry['loss']:8.4f} {entry['perplexity']:11.2f} {bleu}{mark}"
