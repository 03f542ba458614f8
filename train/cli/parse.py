"""`parse`: parse sentences into constituency trees with a trained parser."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from train.cli.app import STDIO, Device, Quiet, app, check_output, line_progress, open_input, open_output, use_device
from train.cli.options import (
    BatchTokens,
    BeamSize,
    LengthPenalty,
    LengthPenaltyType,
    MaxExtraTokens,
    ModelPath,
    NBest,
    OutputPath,
    check_single_input,
    print_stderr,
    search_options,
)
from train.errors import UserError


@app.command(
    epilog="Example: [b]echo 'The cat sat .' | npx-transformer parse --model runs/wsj[/b]. Sentences are tokenized as"
    " in the Penn Treebank, with spaces between words. Line i of the output is the tree of line i; an empty line stays"
    " empty."
)
def parse(
    model_path: ModelPath,
    input: Annotated[
        Path | None, typer.Option(metavar="F", help="Sentences to parse, one per line; default: standard input.")
    ] = None,
    gold: Annotated[
        Path | None, typer.Option(metavar="F", help="Parse the sentences of these trees and report F1 on stderr.")
    ] = None,
    output: OutputPath = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    length_penalty_type: LengthPenaltyType = None,
    max_extra_tokens: MaxExtraTokens = None,
    n_best: NBest = 1,
    batch_tokens: BatchTokens = None,
    lexicon: Annotated[
        Path | None,
        typer.Option(metavar="F", help="Trees that define the possible tags of words; default: the training trees."),
    ] = None,
    free: Annotated[
        bool, typer.Option("--free", help="Search without tree constraints, as in the paper, and repair the output.")
    ] = False,
    svg: Annotated[
        Path | None, typer.Option(metavar="F", help="Draw the first tree and the decoder's attention over the words.")
    ] = None,
    quiet: Quiet = False,
    device: Device = "cpu",
) -> None:
    """Parse sentences, one per line, into trees in Penn Treebank brackets."""
    from dataclasses import asdict

    from train.run.checkpoint import load_with_origin
    from train.tasks.pairs import trained_length
    from train.tasks.parsing.commands import summarize, write_parses
    from train.tasks.parsing.lexicon import Lexicon
    from train.tasks.parsing.pictures import attention_over_words, draw_tree
    from train.tasks.parsing.task import parse_gold, parse_stream, read_clean_trees
    from train.viewer.inspection import check_heads
    from train.viewer.picture import check_suffix

    use_device(device)
    check_single_input(input, gold)
    if lexicon is not None and free:
        raise UserError("--lexicon constrains the search, but --free removes the constraints; try only one of them")
    if svg is not None:
        check_suffix(svg, (".svg",))
        others = (input, gold, lexicon, Path("/dev/stdout") if output in (None, STDIO) else output)
        check_output(svg, *others, models=[model_path])
    trees = list(read_clean_trees(gold)) if gold is not None else []
    tags = Lexicon.from_trees(read_clean_trees(lexicon)) if lexicon is not None else None
    source: AbstractContextManager[Iterator[str | None]] = nullcontext(iter(())) if gold else open_input(input)
    with source as lines, open_output(output, input, gold, lexicon, models=[model_path]) as file:
        model, tokenizer, config, origin = load_with_origin(model_path, "parsing", print_stderr)
        if svg is not None:
            check_heads(model, ["cross"])
        if tags and not tokenizer.uses_tags:
            got = f"{model_path}, which writes XX instead of tags"
            raise UserError(f"--lexicon: expected a parser that writes tags; got {got}; omit --lexicon")
        overrides = {
            "beam_size": beam_size,
            "length_penalty": length_penalty,
            "length_penalty_type": length_penalty_type,
            "max_extra_tokens": max_extra_tokens,
        }
        search = search_options(asdict(config.search), n_best, **overrides, batch_tokens=batch_tokens)
        search |= {"free": free, "lexicon": tags, "trained_length": trained_length(config)}
        with line_progress("parsed", gold or input, output, not quiet) as work:
            search["on_progress"] = work.advance
            if gold is not None:
                work.total = len(trees)
                parses, report = parse_gold(model, tokenizer, trees, **search)
                written = write_parses(file, parses, n_best)
            else:
                written = write_parses(file, parse_stream(model, tokenizer, lines, **search), n_best)
    if not quiet:
        print_stderr(f"parsed {work.result()}, with {origin.path}")
    if svg is not None:
        if written.first_tree is None:
            raise UserError("--svg: the input has no sentence to draw; try an input with words, or omit --svg")
        with open_output(svg, *others, models=[model_path]) as file:
            file.write(draw_tree(written.first_tree, *attention_over_words(model, tokenizer, written.first_tree)))
    if gold is not None:
        print_stderr("\n".join(summarize(parses, report)))
    elif not quiet:
        print_stderr(str(written))
