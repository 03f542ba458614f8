"""`parse`: the constituency trees of sentences, by a trained parser."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from train.cli.app import Device, app, arriving, use_device, writer
from train.cli.options import search_key
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
    beam: Annotated[int | None, search_key("beam", help="Hypotheses a sentence; default: the run's.")] = None,
    alpha: Annotated[float | None, search_key("alpha", help="Length penalty's exponent; default: the run's.")] = None,
    penalty: Annotated[str | None, search_key("penalty", metavar="paper|length", help="Its form.")] = None,
    max_extra: Annotated[int | None, search_key("max_extra", help="Tokens more than the sentence at most.")] = None,
    n_best: Annotated[
        int, search_key("beam", metavar="K", help="K > 1: the K best as lines 'number ||| tree ||| score'.")
    ] = 1,
    batch_tokens: Annotated[int | None, search_key("batch_tokens", help="Source tokens parsed together.")] = None,
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
    from train.show.trees import attention_over_words, draw_tree
    from train.tasks.pairs import numbered
    from train.tasks.parsing import cleaned, parse_gold, parse_stream, summary

    use_device(device)
    given = {"beam": beam, "alpha": alpha, "penalty": penalty, "max_extra": max_extra, "batch_tokens": batch_tokens}

    def warn(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if input is not None and gold is not None:
        raise UserError(f"--gold: expected sentences from one place; got --input {input} too; try one of the two")
    trees = list(cleaned(gold)) if gold is not None else []
    source: AbstractContextManager[Iterator[str | None]] = nullcontext(iter(())) if gold else arriving(input)
    with source as lines, writer(output) as file:
        network, tokenizer, config = load_model(model, "parsing", warn)
        search = asdict(config.search) | {name: value for name, value in given.items() if value is not None}
        if n_best > search["beam"]:
            raise UserError(f"--n-best: expected at most the beam, {search['beam']}; got {n_best}; try --beam {n_best}")
        search |= {"n_best": n_best, "free": free, "on_warning": warn}
        if gold is not None:
            parses, report = parse_gold(network, tokenizer, trees, **search)
            found = iter(parses)
        else:
            found = parse_stream(network, tokenizer, lines, **search)
        sentences = repaired = 0
        drawn = None
        for index, best in enumerate(found):
            file.write(numbered([(str(parse), parse.score) for parse in best] or [("", 0.0)], index, n_best) + "\n")
            file.flush()
            drawn = drawn or (best[0].tree if best else None)
            sentences, repaired = sentences + bool(best), repaired + bool(best and best[0].repaired)
    if svg is not None and drawn is not None:
        with writer(svg) as file:
            file.write(draw_tree(drawn, *attention_over_words(network, tokenizer, drawn)))
    told = summary(parses, report) if gold is not None else [f"repaired {repaired:,} of {sentences:,} outputs"]
    warn("\n".join(told))
