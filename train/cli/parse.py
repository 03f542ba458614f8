"""`parse`: the constituency trees of sentences, by a trained parser."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from train.cli.app import Device, app, arriving, use_device, writer
from train.cli.options import Alpha, BatchTokens, Beam, MaxExtra, Model, NBest, Output, Penalty, searched, warn
from train.errors import UserError


@app.command(
    epilog="Example: [b]echo 'The cat sat .' | npx-transformer parse --model runs/wsj[/b]. Sentences are tokenised as"
    " in the Penn Treebank, with spaces between words. An empty line stays empty, so line i of the output is always the"
    " tree of line i."
)
def parse(
    model: Model,
    input: Annotated[Path | None, typer.Option(metavar="F", help="Sentences to parse; default: stdin.")] = None,
    gold: Annotated[
        Path | None, typer.Option(metavar="F", help="Trees: their sentences are parsed, and scored on stderr.")
    ] = None,
    output: Output = None,
    beam: Beam = None,
    alpha: Alpha = None,
    penalty: Penalty = None,
    max_extra: MaxExtra = None,
    n_best: NBest = 1,
    batch_tokens: BatchTokens = None,
    lexicon: Annotated[
        Path | None,
        typer.Option(metavar="F", help="Trees that say which tags a word may have; default: those it was trained on."),
    ] = None,
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
    from train.tasks.pairs import numbered
    from train.tasks.parsing.lexicon import Lexicon
    from train.tasks.parsing.task import cleaned, parse_gold, parse_stream, summary
    from train.viewer.picture import check_path
    from train.viewer.trees import attention_over_words, draw_tree

    use_device(device)
    given = {"beam": beam, "alpha": alpha, "penalty": penalty, "max_extra": max_extra, "batch_tokens": batch_tokens}
    if input is not None and gold is not None:
        raise UserError(f"--gold: expected sentences from one place; got --input {input} too; try one of the two")
    if lexicon is not None and free:
        raise UserError("--lexicon: expected a search kept to trees; got --free; try one of the two")
    if svg is not None:
        check_path(svg, (".svg",))
    trees = list(cleaned(gold)) if gold is not None else []
    tags = Lexicon.learn(cleaned(lexicon)) if lexicon is not None else None
    source: AbstractContextManager[Iterator[str | None]] = nullcontext(iter(())) if gold else arriving(input)
    with source as lines, writer(output) as file:
        network, tokenizer, config = load_model(model, "parsing", warn)
        if tags and not tokenizer.tags:
            raise UserError(f"--lexicon: expected a parser that writes tags; got {model}, of XX; try it without")
        search = searched(asdict(config.search), n_best, **given) | {"free": free, "lexicon": tags}
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
    if svg is not None:
        if drawn is None:
            raise UserError(f"--svg: expected a sentence, whose tree is drawn; got none, and no {svg}; try with input")
        with writer(svg) as file:
            file.write(draw_tree(drawn, *attention_over_words(network, tokenizer, drawn)))
    told = summary(parses, report) if gold is not None else [f"repaired {repaired:,} of {sentences:,} outputs"]
    warn("\n".join(told))
