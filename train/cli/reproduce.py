"""`reproduce`: train and score the models of the paper's tables, draw its figures, and compare with the paper."""

from pathlib import Path
from typing import Annotated, Any

import typer

from train.cli.app import Commands, Device, app, use_device
from train.cli.options import ModelPath, number_option, print_stderr, text_option
from train.errors import UserError, check_choice


class TableCommands(Commands):
    """The commands of `reproduce`; after Ctrl-C, each can be run again."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            print_stderr("interrupted; run the same command again")
            raise


tables = typer.Typer(cls=TableCommands, help="Reproduce a table or the figures of the paper.")
app.add_typer(tables, name="reproduce")
Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder to write.", show_default=False)]
TextPath = Annotated[Path, typer.Option(metavar="F", help="UTF-8 text, one sentence per line.", show_default=False)]
RowOverrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Override a key in every row; may be repeated."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Do not print progress within a row.")]
RESUME = "After an interruption, run the same command again to continue."


@tables.callback(invoke_without_command=True)
def print_help(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        print(ctx.get_help(), end="")


@tables.command(
    epilog=f"{RESUME} --scale small measures lengths and widths up to 256. Measure times on an otherwise idle machine."
)
def table1(
    out: Out,
    scale: Annotated[str, typer.Option(metavar="full|small", help="Range of lengths and widths.")] = "full",
    quiet: Quiet = False,
) -> None:
    """Measure the layers of Table 1 on the CPU; write table1.md, table1.json and table1.png."""
    from train.experiments.table1 import SCALES, run_table1

    check_choice("--scale", scale, SCALES)
    run_table1(out, scale, progress=not quiet)
    print((out / "table1.md").read_text("utf-8"), end="")


@tables.command(
    epilog=f"{RESUME} --scale tiny trains all rows with an eighth of the widths and half the layers, which takes an"
    " hour and a half on one thread for Multi30k. --scale small has a quarter of the widths, longer training and two"
    " seeds."
)
def table3(
    out: Out,
    train_src: TextPath,
    train_tgt: TextPath,
    valid_src: TextPath,
    valid_tgt: TextPath,
    scale: Annotated[str, typer.Option(metavar="paper|small|tiny", help="Model size and training length.")] = "paper",
    rows: Annotated[
        str | None, typer.Option(metavar="ROW,ROW", help="Rows to train, such as A-h1,B-dk16; default: all.")
    ] = None,
    steps: Annotated[
        int | None,
        number_option(int, "[1, 1000000000]", metavar="N", help="Updates of base; big gets three times as many."),
    ] = None,
    seeds: Annotated[
        int | None,
        number_option(int, "[1, 100]", metavar="N", help="Training runs per row; default: 2 for small, otherwise 1."),
    ] = None,
    jobs: Annotated[int, number_option(int, "[1, 1000]", metavar="N", help="Number of parallel training runs.")] = 1,
    overrides: RowOverrides = None,
    device: Device = "cpu",
    quiet: Quiet = False,
) -> None:
    """Train and score every row of Table 3; write table3.md, table3.json and table3.png."""
    from train.experiments.table3 import SCALES, run_table3

    check_choice("--scale", scale, SCALES)
    use_device(device)
    texts: dict[str, Any] = {"train_src": train_src, "train_tgt": train_tgt}
    texts |= {"valid_src": valid_src, "valid_tgt": valid_tgt}
    names = row_names(rows, "A-h1,B-dk16")
    files = {name: str(path) for name, path in texts.items()}
    run_table3(out, files, scale, names, steps, overrides or (), not quiet, seeds, jobs)
    print((out / "table3.md").read_text("utf-8"), end="")


@tables.command(
    epilog=f"{RESUME} A row is a task (copy, reverse or number-words) and an encoding (sinusoidal, learned, rotary,"
    " alibi, t5 or shaw)."
)
def length(
    out: Out,
    rows: Annotated[
        str | None, typer.Option(metavar="ROW,ROW", help="Rows to train, such as copy-alibi,reverse-t5; default: all.")
    ] = None,
    steps: Annotated[
        int, number_option(int, "[1, 1000000000]", metavar="N", help="Updates of each row.", show_default=True)
    ] = 1500,
    seed: Annotated[
        int, number_option(int, "[0, 4294967295]", metavar="N", help="Seed of the weights and sequences.")
    ] = 1,
    device: Device = "cpu",
    quiet: Quiet = False,
) -> None:
    """Train on sequences of up to 20 tokens and test on up to 200 tokens.

    Writes length.md, length.json and length.png.
    """
    from train.experiments.length import run_length_extrapolation

    use_device(device)
    run_length_extrapolation(out, row_names(rows, "copy-alibi,reverse-t5"), steps, seed, progress=not quiet)
    print((out / "length.md").read_text("utf-8"), end="")


def row_names(rows: str | None, example: str) -> list[str]:
    """Return the names in the value of --rows, or [] without --rows. Raises UserError if the value contains no name."""
    names = [row.strip() for row in (rows or "").split(",") if row.strip()]
    if rows is not None and not names:
        raise UserError(f"--rows: expected names of rows; got '{rows}'; try {example}, or omit --rows for all")
    return names


@tables.command(
    epilog="With --tflops, the training cost is also computed as in the paper: time x devices x sustained FLOP/s. Pass"
    " a number, or the name of one of the paper's devices: K80, K40, M40 or P100."
)
def table2(
    out: Out,
    en_de: Annotated[Path | None, typer.Option(metavar="RUN", help="Run trained on English-German.")] = None,
    en_de_src: Annotated[Path | None, typer.Option(metavar="F", help="Test text, English.")] = None,
    en_de_ref: Annotated[Path | None, typer.Option(metavar="F", help="Test text, German.")] = None,
    en_fr: Annotated[Path | None, typer.Option(metavar="RUN", help="Run trained on English-French.")] = None,
    en_fr_src: Annotated[Path | None, typer.Option(metavar="F", help="Test text, English.")] = None,
    en_fr_ref: Annotated[Path | None, typer.Option(metavar="F", help="Test text, French.")] = None,
    devices: Annotated[
        int, number_option(int, "[1, 1000000]", help="Number of GPUs or machines used for training.")
    ] = 1,
    tflops: Annotated[
        str, typer.Option(metavar="X|P100", help="Sustained TFLOP/s of one device; default: unknown.")
    ] = "0",
    device: Device = "cpu",
) -> None:
    """Translate and score the test sets and compute the training cost; write table2.md and table2.json."""
    from train.experiments.paper import SUSTAINED_TFLOPS
    from train.experiments.table2 import TrainedRun, run_table2

    try:
        sustained = 1e12 * float(SUSTAINED_TFLOPS.get(tflops, tflops))
    except ValueError:
        sustained = -1.0
    if not 0 <= sustained < 1e30:
        raise UserError(
            f"--tflops: expected a number, or one of {', '.join(SUSTAINED_TFLOPS)}; got '{tflops}'; try P100"
        )
    given = {"en-de": (en_de, en_de_src, en_de_ref), "en-fr": (en_fr, en_fr_src, en_fr_ref)}
    runs = {}
    for pair, (run, src, ref) in given.items():
        if run and src and ref:
            runs[pair] = TrainedRun(run, src, ref, devices, sustained)
        elif run or src or ref:
            options = f"--{pair}, --{pair}-src and --{pair}-ref"
            raise UserError(f"table2: expected a run and both sides of its test set; got only some; try {options}")
    use_device(device)
    run_table2(out, runs)
    print((out / "table2.md").read_text("utf-8"), end="")


TreesPath = Annotated[Path, typer.Option(metavar="F", help="Trees in Penn Treebank brackets.", show_default=False)]


@tables.command(
    epilog=f"{RESUME} --silver adds the semi-supervised row. --run wsj=RUN and --run semi=RUN use runs that are already"
    " trained. --other NAME=F scores another parser's trees of the test sentences, one per line (such as those"
    " of python -m benchmarks.pcfg)."
)
def table4(
    out: Out,
    train_trees: TreesPath,
    valid_trees: TreesPath,
    test_trees: TreesPath,
    silver: Annotated[
        Path | None, typer.Option(metavar="F", help="Automatically parsed trees for the semi-supervised row.")
    ] = None,
    scale: Annotated[str, typer.Option(metavar="paper|small", help="Model size and training length.")] = "paper",
    run: Annotated[
        list[str] | None, typer.Option(metavar="ROW=RUN", help="Run of a row that is already trained; may be repeated.")
    ] = None,
    other: Annotated[
        list[str] | None, typer.Option(metavar="NAME=F", help="Another parser's trees; may be repeated.")
    ] = None,
    overrides: RowOverrides = None,
    device: Device = "cpu",
    quiet: Quiet = False,
) -> None:
    """Train and test the two parsers of Table 4; write table4.md and table4.json."""
    from train.experiments.table4 import ROW_NAMES, SCALES, run_table4

    check_choice("--scale", scale, SCALES)
    use_device(device)
    runs, others = named_paths("--run", run), named_paths("--other", other)
    if unknown := runs.keys() - ROW_NAMES.keys():
        raise UserError(f"--run: expected {' or '.join(ROW_NAMES)}; got '{unknown.pop()}'; try wsj=RUN")
    trees = {"train": train_trees, "valid": valid_trees, "test": test_trees} | ({"silver": silver} if silver else {})
    run_table4(out, trees, scale, runs, others, overrides or (), progress=not quiet)
    print((out / "table4.md").read_text("utf-8"), end="")


def named_paths(option: str, values: list[str] | None) -> dict[str, Path]:
    """Parse the NAME=PATH values of an option into a dictionary."""
    for value in values or ():
        if not all(value.partition("=")):
            raise UserError(f"{option}: expected NAME=PATH; got '{value}'; try {option} wsj=runs/wsj")
    return {name: Path(path) for name, _, path in (value.partition("=") for value in values or ())}


@tables.command(
    epilog="Figures 3, 4 and 5 of the paper: lines from a token to the tokens that the encoder's heads attend to, in"
    " the second-to-last layer. The heads of figures 4 and 5 are chosen by their weights, as the captions explain."
)
def figures(
    out: Out,
    model_path: ModelPath,
    input: Annotated[
        str,
        text_option(
            "--input", is_sentence=True, metavar="SENTENCE", help="Sentence in the source language.", show_default=False
        ),
    ],
    word: Annotated[
        str, typer.Option(metavar="WORD", help="Token whose attention figure 3 shows; default: the middle one.")
    ] = "",
    layer: Annotated[
        int | None,
        number_option(int, "[0, 999]", metavar="N", help="Encoder layer, from 0; default: the second-to-last."),
    ] = None,
    device: Device = "cpu",
) -> None:
    """Draw figures 3, 4 and 5 of the paper for a sentence; write figure3.svg, figure4.svg and figure5.svg."""
    from train.experiments.folder import open_table_folder
    from train.run.checkpoint import load_with_origin
    from train.viewer.heads import draw_figures
    from train.viewer.inspection import check_heads, inspect, source_ids
    from train.viewer.picture import check_picture

    check_picture(out.parent / "figure3.svg")
    use_device(device)
    model, tokenizer, _, origin = load_with_origin(model_path, "translation", print_stderr)
    check_heads(model, ("encoder",))
    inspection = inspect(model, tokenizer, source_ids(model, tokenizer, input), [])
    tokens = inspection.source
    word = word or tokens[(len(tokens) - 1) // 2]
    check_choice("--word", word, tokens)
    last = model.config.n_layers - 1
    if layer is not None and layer > last:
        raise UserError(f"--layer: expected 0 to {last}; got {layer}; try {last}")
    open_table_folder(out, {}, "figures.json")
    for file in draw_figures(inspection, word, max(0, last - 1) if layer is None else layer, out, origin.caption):
        print(file)
