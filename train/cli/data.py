"""`data`: prepare a known corpus, or the user's own files, for training."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from train.cli.app import app
from train.cli.options import number_option, print_stderr
from train.errors import UserError, check_choice, plural, quote

OWN = "own"
LARGE = 500_000  # with at least this many pairs, the preset base is suggested; otherwise tiny


@app.command(
    epilog="`own` prepares your own pairs of files. Without a network, put the files that the error message names into"
    " DIR/downloads. After an interruption, run the same command again to continue."
)
def data(
    name: Annotated[
        str, typer.Argument(metavar="wmt14-en-de|wmt14-en-fr|multi30k|iwslt14-de-en|own", show_default=False)
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write.", show_default=False)],
    mirror: Annotated[str, typer.Option(metavar="URL|DIR", help="Fetch the files from this URL or folder.")] = "",
    train_src: Annotated[
        str, typer.Option(metavar="F", help="For own: source training text; may be gzip-compressed (.gz).")
    ] = "",
    train_tgt: Annotated[str, typer.Option(metavar="F", help="For own: target training text.")] = "",
    valid_src: Annotated[str, typer.Option(metavar="F", help="For own: source validation text.")] = "",
    valid_tgt: Annotated[str, typer.Option(metavar="F", help="For own: target validation text.")] = "",
    hold_out: Annotated[
        int,
        number_option(
            int,
            "[0, 1e9]",
            metavar="N",
            help="For own, without a validation text: take N distinct sources out of the training text for validation.",
        ),
    ] = 0,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="bpe|wordpiece", help="Subword algorithm; default: the paper's algorithm.")
    ] = None,
    vocab_size: Annotated[
        int | None,
        number_option(
            int, "[260, 16777216]", metavar="V", help="Vocabulary size; default: the paper's; for own, at most 37000."
        ),
    ] = None,
    tokenizer_lines: Annotated[
        int,
        number_option(
            int, "[0, 1e12]", metavar="N", help="Train the tokenizer on N evenly spaced lines per side; 0: all."
        ),
    ] = 1_000_000,
    max_length: Annotated[int, number_option(int, "[2, 65535]", help="Drop pairs with more tokens on a side.")] = 256,
    max_words: Annotated[
        int, number_option(int, "[0, 1e9]", help="Drop pairs with more words on a side; 0: keep all.")
    ] = 250,
    max_ratio: Annotated[
        float,
        number_option(
            float, "[0, 1e9]", help="Drop pairs with a larger ratio of their lengths (characters + 20); 0: keep all."
        ),
    ] = 3.0,
    keep_duplicates: Annotated[bool, typer.Option("--keep-duplicates", help="Keep repeated pairs.")] = False,
    keep_non_latin: Annotated[
        bool, typer.Option("--keep-non-latin", help="Keep pairs with a side whose letters are mostly not Latin.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not report progress.")] = False,
) -> None:
    """Download, verify and clean a corpus, train its tokenizer, and write token arrays."""
    from train.text.download.catalog import NAMES, Dataset, Pair, dataset
    from train.text.download.clean import Rules, describe_removed
    from train.text.download.prepare import PreparationOptions, prepare_dataset
    from train.text.tokenizer import KINDS

    check_choice("data", name, (*NAMES, OWN), fallback="own --train-src F --train-tgt F for your own text")
    if tokenizer is not None:
        suggestion = f"`train --set data.tokenizer={quote(tokenizer)}`" if os.path.exists(tokenizer) else ""
        check_choice("--tokenizer", tokenizer, KINDS, fallback=suggestion)
    files = train_src, train_tgt, valid_src, valid_tgt
    if name == OWN:
        if not (train_src and train_tgt) or bool(valid_src) != bool(valid_tgt):
            n = 4 if valid_src or valid_tgt else 2
            missing = [option for option, file in zip(TEXT_OPTIONS[:n], files[:n], strict=True) if not file]
            raise UserError(
                f"data own: expected both sides of each text; {' and '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} missing; try {' '.join(f'{option} F' for option in missing)}"
            )
        valid = (Pair("", valid_src, valid_tgt),) if valid_src else ()
        for file in filter(os.path.isfile, {train_src, valid_src} & {train_tgt, valid_tgt}):
            print_stderr(f"warning: {file} is both a source and a target; try the file of each language")
        if mirror:
            raise UserError(f"data own: --mirror {mirror} has no effect, because nothing is downloaded; omit --mirror")
        if hold_out and valid_src:
            raise UserError("data own: --hold-out cannot be combined with --valid-src; try only one of them")
        corpus = Dataset("src", "tgt", (), (Pair("", train_src, train_tgt),), valid)
    elif hold_out:
        raise UserError(f"data {name}: --hold-out applies only to `data own`; omit --hold-out")
    elif any(files):
        raise UserError(f"data {name}: this corpus is downloaded, so text files are not accepted; try `data own`")
    else:
        corpus = dataset(name)
    rules = Rules(max_words, max_ratio, not keep_non_latin, not keep_duplicates)
    settings = PreparationOptions(rules, tokenizer, vocab_size, tokenizer_lines, max_length, hold_out)
    command = shlex.join(["npx-transformer", *sys.argv[1:]])
    try:
        manifest = prepare_dataset(corpus, out, settings, mirror, command, progress=not quiet)
    except KeyboardInterrupt:
        print_stderr("interrupted; run the same command again to continue")
        raise
    pairs = manifest["pairs"]
    clean = manifest["texts"]["train"]["counts"]["kept"]
    held_out = f" ({pairs['held_out']:,} of them held out)" if pairs["held_out"] else ""
    if hold_out and hold_out < pairs["held_out"]:  # valid has only one pair for each source
        held_out = f" ({pairs['held_out']:,} of them held out, with {hold_out:,} different sources)"
    print(f"{plural(pairs['read'], 'pair')} read, {clean:,} kept{held_out}; removed: {describe_removed(pairs)}")
    for part, array in manifest["arrays"].items():
        src, tgt = (array["tokens"][side] + array["kept"] for side in ("src", "tgt"))  # including EOS tokens
        outcomes = (array["too_long"], f"with more than {max_length} tokens"), (array["empty"], "with an empty side")
        left_out = ", ".join(f"{number:,} {words}" for number, words in outcomes if number)
        line = f"{part}: {plural(array['kept'], 'pair')}, {src:,} source and {tgt:,} target tokens"
        print(f"{line}; left out: {left_out}" if left_out else line)
    if "valid" in manifest["arrays"]:
        n = manifest["shared_sources"]
        total = manifest["texts"]["valid"]["lines"]
        consequence = ""
        if n and not hold_out:
            consequence = ", so validation scores will overestimate the quality on new text; try --hold-out"
        print(f"valid: {n:,} of {total:,} sources also occur in the training text{consequence}")
    print(f"{out / 'manifest.json'} records the sources and settings")
    options = ["base" if clean >= LARGE else "tiny", "--data", str(out), "--out", f"runs/{out.absolute().name}"]
    print(f"train a model on it: {shlex.join(['npx-transformer', 'train', *options])}")


TEXT_OPTIONS = "--train-src", "--train-tgt", "--valid-src", "--valid-tgt"
