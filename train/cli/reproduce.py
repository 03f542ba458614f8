"""`reproduce`: the paper's tables, trained and scored here, beside the paper's."""

from pathlib import Path
from typing import Annotated, Any

import typer

from train.cli.app import Device, app, use_device
from train.cli.options import number, text, warn

tables = typer.Typer(help="Reproduce a table of the paper: its figures beside ours.")
app.add_typer(tables, name="reproduce")
Text = Annotated[Path, typer.Option(metavar="F", help="A sentence a line, UTF-8.", show_default=False)]


@tables.callback(invoke_without_command=True)
def which(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        print(ctx.get_help(), end="")


@tables.command(
    epilog="Stopped in any way, the same command goes on where it was. --scale tiny: all rows with an eighth of"
    " the widths and half of the layers, an hour and a half with one thread for Multi30k."
)
def table3(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write.", show_default=False)],
    train_src: Text,
    train_tgt: Text,
    valid_src: Text,
    valid_tgt: Text,
    scale: Annotated[str, typer.Option(metavar="paper|tiny", help="Size of models and trainings.")] = "paper",
    rows: Annotated[str, typer.Option(metavar="ROW,ROW", help="Only these, as in A-h1,B-dk16; default: all.")] = "",
    steps: Annotated[
        int | None, number(int, "[1, 1000000000]", metavar="N", help="Updates of base; big has three times as many.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="For every row; may be repeated.")
    ] = None,
    device: Device = "cpu",
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress within a row.")] = False,
) -> None:
    """Train, average, translate with and score every row of Table 3; write table3.md, .json and .png."""
    from train.errors import UserError, nearest
    from train.experiments.table3 import SCALES, run_table3

    if scale not in SCALES:
        raise UserError(f"--scale: expected {' or '.join(SCALES)}; got '{scale}'; try {nearest(scale, SCALES)}")
    use_device(device)
    texts: dict[str, Any] = {"train_src": train_src, "train_tgt": train_tgt}
    texts |= {"valid_src": valid_src, "valid_tgt": valid_tgt}
    names = [row.strip() for row in rows.split(",") if row.strip()]
    files = {name: str(path) for name, path in texts.items()}
    run_table3(out, files, scale, names, steps, settings or (), progress=not quiet)
    print((out / "table3.md").read_text("utf-8"), end="")


@tables.command(
    epilog="--tflops: what one device sustains, for the paper's way to count: time x devices x this. A number, or one"
    " of the paper's: K80, K40, M40, P100."
)
def table2(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write.", show_default=False)],
    en_de: Annotated[Path | None, typer.Option(metavar="RUN", help="Run trained on English-German.")] = None,
    en_de_src: Annotated[Path | None, typer.Option(metavar="F", help="Test text, English.")] = None,
    en_de_ref: Annotated[Path | None, typer.Option(metavar="F", help="Test text, German.")] = None,
    en_fr: Annotated[Path | None, typer.Option(metavar="RUN", help="Run trained on English-French.")] = None,
    en_fr_src: Annotated[Path | None, typer.Option(metavar="F", help="Test text, English.")] = None,
    en_fr_ref: Annotated[Path | None, typer.Option(metavar="F", help="Test text, French.")] = None,
    devices: Annotated[int, number(int, "[1, 1000000]", help="GPUs, or machines, that trained.")] = 1,
    tflops: Annotated[str, typer.Option(metavar="X|P100", help="TFLOP/s that one sustains; default: unknown.")] = "0",
    device: Device = "cpu",
) -> None:
    """Translate and score the tests, count the operations of the trainings; write table2.md and .json."""
    from train.errors import UserError
    from train.experiments.paper import SUSTAINED
    from train.experiments.table2 import Ours, run_table2

    try:
        sustained = 1e12 * float(SUSTAINED.get(tflops, tflops))
    except ValueError:
        sustained = -1.0
    if not 0 <= sustained < 1e30:
        raise UserError(f"--tflops: expected a number, or one of {', '.join(SUSTAINED)}; got '{tflops}'; try P100")
    given = {"en-de": (en_de, en_de_src, en_de_ref), "en-fr": (en_fr, en_fr_src, en_fr_ref)}
    ours = {}
    for pair, (run, src, ref) in given.items():
        if run and src and ref:
            ours[pair] = Ours(run, src, ref, devices, sustained)
        elif run or src or ref:
            also = f"--{pair}, --{pair}-src and --{pair}-ref"
            raise UserError(f"table2: expected a run and both sides of its test; got some of them; try {also}")
    use_device(device)
    run_table2(out, ours)
    print((out / "table2.md").read_text("utf-8"), end="")


Trees = Annotated[Path, typer.Option(metavar="F", help="Penn Treebank brackets.", show_default=False)]
Named = Annotated[list[str] | None, typer.Option(metavar="NAME=PATH", help="May be repeated; see below.")]


@tables.command(
    epilog="Stopped in any way, the same command goes on where it was. --silver: trees parsed by machine, for a second"
    " row. --run wsj=RUN, --run semi=RUN: rows that are trained already. --other NAME=F: trees that another parser"
    " found for the test sentences, one a line: python -m benchmarks.pcfg makes some."
)
def table4(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write.", show_default=False)],
    train_trees: Trees,
    valid_trees: Trees,
    test_trees: Trees,
    silver: Annotated[Path | None, typer.Option(metavar="F", help="Machine-made trees, to learn from too.")] = None,
    scale: Annotated[str, typer.Option(metavar="paper|small", help="Size of models and trainings.")] = "paper",
    run: Named = None,
    other: Named = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="For every row; may be repeated.")
    ] = None,
    device: Device = "cpu",
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress within a row.")] = False,
) -> None:
    """Train and test the two parsers of Table 4; write table4.md and .json, all the table's parsers beside ours."""
    from train.errors import UserError, nearest
    from train.experiments.table4 import KINDS, SCALES, run_table4

    if scale not in SCALES:
        raise UserError(f"--scale: expected {' or '.join(SCALES)}; got '{scale}'; try {nearest(scale, SCALES)}")
    use_device(device)
    runs, others = named("--run", run), named("--other", other)
    if unknown := runs.keys() - KINDS.keys():
        raise UserError(f"--run: expected {' or '.join(KINDS)}; got '{unknown.pop()}'; try wsj=RUN")
    trees = {"train": train_trees, "valid": valid_trees, "test": test_trees} | ({"silver": silver} if silver else {})
    run_table4(out, trees, scale, runs, others, settings or (), progress=not quiet)
    print((out / "table4.md").read_text("utf-8"), end="")


def named(option: str, values: list[str] | None) -> dict[str, Path]:
    """NAME=PATH of an option, by name."""
    from train.errors import UserError

    for value in values or ():
        if not all(value.partition("=")):
            raise UserError(f"{option}: expected NAME=PATH; got '{value}'; try {option} wsj=runs/wsj")
    return {name: Path(path) for name, _, path in (value.partition("=") for value in values or ())}


@tables.command(
    epilog="The paper's figures 3, 4 and 5: lines from a word to those that the encoder's heads look at, in the last"
    " layer but one. Which heads figures 4 and 5 show is chosen by their weights, as the pictures' texts say."
)
def figures(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write.", show_default=False)],
    model: Annotated[Path, typer.Option(metavar="RUN", help="Run folder, or one checkpoint.", show_default=False)],
    input: Annotated[str, text("--input", metavar="SENTENCE", help="In the source language.", show_default=False)],
    word: Annotated[
        str, typer.Option(metavar="WORD", help="The piece that is followed; default: the one in the middle.")
    ] = "",
    layer: Annotated[
        int | None,
        number(int, "[1, 1000]", metavar="N", help="Layer of the encoder, from 1; default: the last but one."),
    ] = None,
    device: Device = "cpu",
) -> None:
    """Draw the paper's figures 3, 4 and 5 for a sentence of your own; write figure3.svg, figure4.svg, figure5.svg."""
    from train.errors import UserError, nearest
    from train.experiments.folder import begin
    from train.run.checkpoint import load_with_origin
    from train.viewer.heads import draw_figures
    from train.viewer.inspection import inspect, source_ids
    from train.viewer.picture import check

    check(out.parent / "figure3.svg")
    use_device(device)
    network, tokenizer, _, source = load_with_origin(model, "translation", warn)
    seen = inspect(network, tokenizer, source_ids(network, tokenizer, input), [])
    word = word or seen.source[(len(seen.source) - 1) // 2]
    if word not in seen.source:
        found = ", ".join(seen.source)
        raise UserError(f"--word: expected one of {found}; got '{word}'; try {nearest(word, seen.source)}")
    layers = network.config.n_layers
    if layer is not None and layer > layers:
        raise UserError(f"--layer: expected 1 to {layers}; got {layer}; try {layers}")
    begin(out, {}, "figures.json")
    for file in draw_figures(seen, word, (layer or max(1, layers - 1)) - 1, out, source):
        print(file)
