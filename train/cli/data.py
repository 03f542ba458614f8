"""`data`: a corpus made ready for training, by name or from one's own files."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from train.cli.app import app
from train.cli.options import number
from train.errors import UserError, nearest

OWN = "own"


@app.command(
    epilog="Without a network: the files named in its message, put into DIR/downloads by hand, are taken. `own` cleans"
    " and prepares your own pairs of files. Stopped in any way, the same command goes on."
)
def data(
    name: Annotated[
        str, typer.Argument(metavar="wmt14-en-de|wmt14-en-fr|multi30k|iwslt14-de-en|own", show_default=False)
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write.", show_default=False)],
    mirror: Annotated[str, typer.Option(metavar="URL|DIR", help="Where files of these names lie instead.")] = "",
    train_src: Annotated[str, typer.Option(metavar="F", help="With `own`: training text, source; may be .gz.")] = "",
    train_tgt: Annotated[str, typer.Option(metavar="F", help="With `own`: training text, target.")] = "",
    valid_src: Annotated[str, typer.Option(metavar="F", help="With `own`: validation text, source.")] = "",
    valid_tgt: Annotated[str, typer.Option(metavar="F", help="With `own`: validation text, target.")] = "",
    tokenizer: Annotated[str | None, typer.Option(metavar="bpe|wordpiece", help="Default: the paper's.")] = None,
    vocab_size: Annotated[int | None, number(int, "[260, 16777216]", metavar="V", help="Its types.")] = None,
    learn_from: Annotated[
        int, number(int, "[0, 1e12]", metavar="N", help="Learn it on N evenly spaced lines a side; 0: on all.")
    ] = 1_000_000,
    max_length: Annotated[int, number(int, "[2, 65535]", help="Tokens a side, of a pair that is kept.")] = 256,
    max_words: Annotated[int, number(int, "[0, 1e9]", help="Words a side, of a pair that is kept; 0: any.")] = 250,
    max_ratio: Annotated[float, number(float, "[0, 1e9]", help="Of the characters, 20 more each; 0: any.")] = 3.0,
    keep_duplicates: Annotated[bool, typer.Option("--keep-duplicates", help="Keep pairs that were there.")] = False,
    keep_scripts: Annotated[bool, typer.Option("--keep-scripts", help="Keep text that is not Latin.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Fetch a corpus, check it, clean it, learn its vocabulary, prepare it as token arrays."""
    from train.text.download.catalog import NAMES, Dataset, Pair, dataset
    from train.text.download.clean import Rules
    from train.text.download.prepare import Settings, collect
    from train.text.tokenizer import KINDS, choice

    if name not in (*NAMES, OWN):
        raise UserError(f"data: expected one of {', '.join(NAMES)}, {OWN}; got '{name}'; try {nearest(name, NAMES)}")
    if tokenizer is not None:
        choice("--tokenizer", tokenizer, KINDS)
    files = train_src, train_tgt, valid_src, valid_tgt
    if name == OWN:
        if not (train_src and train_tgt) or bool(valid_src) != bool(valid_tgt):
            raise UserError("data own: expected both sides of a text; got one or none; try --train-src F --train-tgt F")
        valid = (Pair("", valid_src, valid_tgt),) if valid_src else ()
        if mirror:
            raise UserError(f"data own: expected no --mirror, as nothing is fetched; got {mirror}; try without it")
        known = Dataset("src", "tgt", (), (Pair("", train_src, train_tgt),), valid)
    elif any(files):
        raise UserError(f"data {name}: expected no files, which it fetches itself; got some; try data own")
    else:
        known = dataset(name)
    rules = Rules(max_words, max_ratio, not keep_scripts, not keep_duplicates)
    settings = Settings(rules, tokenizer, vocab_size, learn_from, max_length)
    command = shlex.join(["npx-transformer", *sys.argv[1:]])
    manifest = collect(known, out, settings, mirror, command, progress=not quiet)
    counts = manifest["texts"]["train"]["counts"]
    left_out = ", ".join(f"{n:,} {reason}" for reason, n in counts.items() if reason not in ("read", "kept"))
    print(f"{counts['read']:,} pairs read, {counts['kept']:,} kept; left out: {left_out}")
    for part, of in manifest["arrays"].items():
        print(f"{part}: {of['kept']:,} pairs, {of['tokens']['src']:,} + {of['tokens']['tgt']:,} tokens")
    print(f"{out / 'manifest.json'} says where all of it comes from")
