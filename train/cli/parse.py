"""`parse`: the constituency trees of sentences, by a trained parser."""

import sys
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from train.cli.app import Device, app, stdin_lines, use_device, what_is, writer
from train.errors import UserError


@app.command(
    epilog="Example: [b]echo 'The cat sat .' | npx-transformer parse --model runs/wsj[/b]. Sentences are tokenised as"
    " in the Penn Treebank, with spaces between words. An empty line stays empty, so line i of the output is always the"
    " tree of line i."
)
def parse(
    model: Annotated[Path, typer.Option(metavar="RUN", help="Run folder, or one checkpoint.", show_default=False)],
    input: Annotated[Path | None, typer.Option(metavar="F", help="Sentences to parse; default: stdin.")] = None,
    gold: Annotated[
        Path | None, typer.Option(metavar="F", help="Trees: their sentences are parsed, and scored on stderr.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="F", help="Where to; default: stdout. Written whole or not at all.")
    ] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Hypotheses a sentence; default: the run's.")] = None,
    alpha: Annotated[float | None, typer.Option(min=0, help="Length penalty's exponent; default: the run's.")] = None,
    penalty: Annotated[str | None, typer.Option(metavar="paper|length", help="Its form; default: the run's.")] = None,
    max_extra: Annotated[int | None, typer.Option(min=1, help="Tokens more than the sentence at most.")] = None,
    n_best: Annotated[
        int, typer.Option(min=1, metavar="K", help="K > 1: the K best as lines 'number ||| tree ||| score'.")
    ] = 1,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Source tokens parsed together.")] = None,
    free: Annotated[
        bool, typer.Option("--free", help="Search among all outputs, as in the paper, and repair what is no tree.")
    ] = False,
    svg: Annotated[
        Path | None, typer.Option(metavar="F", help="Draw the first tree and the decoder's attention over the words.")
    ] = None,
    device: Device = "cpu",
) -> None:
    """Parse sentences, one a line, into trees in Penn Treebank brackets."""
    from dataclasses import asdict

    from train.run.checkpoint import load_model
    from train.run.config import check, keys_of
    from train.show.trees import attention_over_words, draw_tree
    from train.tasks.pairs import numbered
    from train.tasks.parsing import cleaned, parse_gold, parse_stream, summary
    from train.text.lines import read_lines

    use_device(device)
    given = {"beam": beam, "alpha": alpha, "penalty": penalty, "max_extra": max_extra, "batch_tokens": batch_tokens}
    keys = keys_of("search")
    changes = {k: check("search", keys[k], value, "parse") for k, value in given.items() if value is not None}
    if input is not None and gold is not None:
        raise UserError(f"--gold: expected sentences from one place; got --input {input} too; try one of the two")
    if input is not None and not input.is_file():
        raise UserError(f"{input}: expected a text file; got {what_is(input)}; try another --input, or none for stdin")
    trees = list(cleaned(gold)) if gold is not None else []
    network, tokenizer, config = load_model(model, "parsing")
    search = asdict(config.search) | changes
    if n_best > search["beam"]:
        raise UserError(f"--n-best: expected at most the beam, {search['beam']}; got {n_best}; try --beam {n_best}")
    search |= {"n_best": n_best, "free": free, "on_warning": lambda text: print(text, file=sys.stderr)}
    if gold is not None:
        parses, report = parse_gold(network, tokenizer, trees, **search)
        found = iter(parses)
    else:
        lines = chain.from_iterable(read_lines(input)) if input else stdin_lines()
        found = parse_stream(network, tokenizer, lines, **search)
    sentences = repaired = 0
    drawn = None
    with writer(output) as file:
        for index, best in enumerate(found):
            file.write(numbered([(str(parse), parse.score) for parse in best] or [("", 0.0)], index, n_best) + "\n")
            drawn = drawn or (best[0].tree if best else None)
            sentences, repaired = sentences + bool(best), repaired + bool(best and best[0].repaired)
    if svg is not None and drawn is not None:
        with writer(svg) as file:
            file.write(draw_tree(drawn, *attention_over_words(network, tokenizer, drawn)))
    told = summary(parses, report) if gold is not None else [f"repaired {repaired:,} of {sentences:,} outputs"]
    print("\n".join(told), file=sys.stderr)
