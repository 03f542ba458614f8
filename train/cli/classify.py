"""`classify`: label texts with a trained classifier, or label each word (token) with a trained tagger."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from train.cli.app import STDIO, Device, Quiet, app, line_progress, open_input, open_output, use_device
from train.cli.options import ModelPath, OutputPath, check_single_input, number_option, print_stderr
from train.errors import UserError

LABEL_TASKS = ("classification", "tagging")


@app.command(
    epilog="Example: [b]echo 'A fine film .' | npx-transformer classify --model runs/sentiment[/b] prints"
    " 'positive<TAB>0.9731', a label and its probability. For a tagger, spaces separate the words, and the output has"
    " one tag per word. A tab separates the texts of a pair."
)
def classify(
    model_path: ModelPath,
    input: Annotated[
        Path | None, typer.Option(metavar="F", help="Texts to label, one per line; default: standard input.")
    ] = None,
    gold: Annotated[
        Path | None,
        typer.Option(
            metavar="F",
            help="Label the texts of this labeled file and print accuracy and F1 per label, on stderr unless"
            " --output is given.",
        ),
    ] = None,
    gold_tags: Annotated[
        Path | None,
        typer.Option(
            metavar="F", help="Tags of the sentences in --gold, one line per sentence; default: the tags in --gold."
        ),
    ] = None,
    output: OutputPath = None,
    top: Annotated[
        int | None,
        number_option(
            int,
            "[1, 10000]",
            metavar="K",
            help="Print the K most probable labels of a text (only with a classifier); default: 1.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line, with the probabilities.")
    ] = False,
    quiet: Quiet = False,
    device: Device = "cpu",
) -> None:
    """Label each line of text with a classifier, or each of its words (tokens) with a tagger."""
    from train.run.checkpoint import find_and_read, load_with_origin, read_state, task_of
    from train.tasks.line_predictions import label_lines, score_labels, text_of
    from train.tasks.task import TaskError
    from train.text.labeled_text import check_tag_lines, label_names

    use_device(device)
    check_single_input(input, gold)
    task: Any = task_of(find_and_read(model_path, read_state)[1])
    if task.name not in LABEL_TASKS:
        raise TaskError(model_path, LABEL_TASKS, task)
    if top is not None and task.name == "tagging":
        raise UserError("--top applies only to classifiers; for a tagger, try --json, which prints probabilities")
    if gold_tags is not None and task.name != "tagging":
        raise UserError("--gold-tags applies only to taggers, and the model is a classifier; omit --gold-tags")
    if gold_tags is not None and gold is None:
        raise UserError("--gold-tags needs --gold, the file with the words; try adding --gold F")
    gold_files = [str(path) for path in (gold, gold_tags) if path is not None]
    if gold is not None and gold_tags is not None:
        check_tag_lines(str(gold), str(gold_tags))
    examples = list(task.read(*gold_files)) if gold_files else []
    texts: AbstractContextManager[Iterator[str | None]] = (
        open_input(input) if gold is None else nullcontext(text_of(example, task.name) for example in examples)
    )
    predicted = []
    with texts as lines, open_output(output, input, gold, gold_tags, models=[model_path]) as file:
        model, tokenizer, _, origin = load_with_origin(model_path, task.name, print_stderr)
        names = label_names(tokenizer)
        if gold is None and task.name == "classification":
            lines = warn_about_labels(lines, names)
        with line_progress("labeled", gold or input, output, not quiet and gold is None) as work:
            numbers = None if gold is None else [example.line for example in examples]
            results = label_lines(model, tokenizer, lines, task.name, work.advance, numbers)
            for index, result in enumerate(results):
                file.write(format_prediction(index, result, names, top or 1, as_json) + "\n")
                file.flush()
                if gold is not None:
                    predicted.append(result.labels)
    if gold is not None:
        for line in score_labels(examples, predicted).table():
            print(line, file=sys.stderr if output in (None, STDIO) else sys.stdout)
    elif not quiet:
        print_stderr(f"labeled {work.result()}, with {origin.path}")


def warn_about_labels(lines: Iterable[str | None], labels: list[str]) -> Iterator[str | None]:
    """Yield the lines. Warn if the first one begins with a label and a tab, as in a labeled file."""
    is_first = True
    for line in lines:
        label, tab, _ = (line or "").partition("\t")
        if is_first and tab and label in labels:
            print_stderr(
                f"warning: the input begins with the label {label!r} and a tab; for a labeled file, try --gold F"
            )
        is_first = is_first and line is None
        yield line


def format_prediction(index: int, result: Any, names: list[str], top: int, as_json: bool) -> str:
    """Return the output for a line: tags, or `top` labels with their probabilities."""
    if result.words:
        if not as_json:
            return " ".join(result.labels)
        best = [round(float(p), 6) for p in result.probabilities.max(axis=1)]
        fields = {"words": result.words, "tags": result.labels, "probabilities": best}
        return json.dumps({"index": index} | fields, ensure_ascii=False)
    p = result.probabilities[0]
    ranked = sorted(range(len(names)), key=lambda i: (-p[i], i))
    if as_json:
        probabilities = {names[i]: round(float(p[i]), 6) for i in ranked}
        fields = {"label": result.labels[0], "probabilities": probabilities}
        return json.dumps({"index": index} | fields, ensure_ascii=False)
    return "\t".join(f"{names[i]}\t{p[i]:.4f}" for i in ranked[:top])
