"""`draw`: draw a picture of a run as PNG or SVG, and write its alternative text to a second file."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from train.cli.app import Device, RunPath, app, check_output, use_device
from train.cli.options import number_option, print_stderr, search_option, text_option
from train.errors import UserError, check_choice, nearest
from train.run.config import RunConfig
from train.run.folder import RunFolder, not_a_run_error
from train.tasks import TASKS, Task
from train.tasks.protocols import TextTokenizer
from train.tasks.task import describe_model
from train.text.corpus import PairCorpus

PICTURES = ("heads", "beam", "curves", "memory", "roles", "confusion")
PICTURE_SYNONYMS = {  # other names for the pictures
    **dict.fromkeys(("attention", "attn", "attentions", "head"), "heads"),
    **dict.fromkeys(("search", "tree", "hypotheses"), "beam"),
    **dict.fromkeys(("loss", "metrics", "learning", "bleu", "plot"), "curves"),
    **dict.fromkeys(("ablation", "importance"), "roles"),
    **dict.fromkeys(("errors", "matrix"), "confusion"),
}  # fmt: skip
DEFAULT_SENTENCES = 100
MODEL_DESCRIPTIONS = {"text": "a language model", "labels": "an encoder"}  # maps `data_kind` to a description


@app.command(
    epilog="heads: attention of every head on one sentence. beam: the search tree of a translation. curves: loss,"
    " scores, learning rate, gradient norm and speed; --also adds runs. memory: bytes in use during one update. roles:"
    " where each head attends on the validation text, and the loss when it is ablated. confusion: the"
    " correct and predicted labels of the validation text. A description in words is written to F.alt.txt. The same"
    " input always gives the same file."
)
def draw(
    run: RunPath,
    picture_name: Annotated[
        str, typer.Argument(metavar="|".join(PICTURES), help="Picture to draw.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(metavar="F.png|F.svg", help="File to write.", show_default=False)],
    input: Annotated[
        str,
        text_option(
            "--input",
            is_sentence=True,
            metavar="SENTENCE",
            help="For heads and beam: the input sentence.",
            show_default=False,
        ),
    ] = "",
    kind: Annotated[
        str, typer.Option(metavar="encoder|decoder|cross", help="For heads: kind of attention; default: all three.")
    ] = "",
    also: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="For curves: another run to draw; may be repeated.")
    ] = None,
    sentences: Annotated[
        int | None,
        number_option(
            int, "[1, 1000000]", help=f"For roles: number of validation sentences; default: {DEFAULT_SENTENCES}."
        ),
    ] = None,
    beam_size: Annotated[
        int | None, search_option("beam_size", help="For heads and beam: beam size; default: the run's setting.")
    ] = None,
    length_penalty: Annotated[
        float | None,
        search_option(
            "length_penalty",
            help="For heads and beam: length penalty exponent (the paper's alpha); default: the run's setting.",
        ),
    ] = None,
    device: Device = "cpu",
) -> None:
    """Draw attention, beam search, training curves, memory, the roles of heads or a confusion matrix."""
    from train.progress import Display
    from train.viewer import picture

    if picture_name not in PICTURES:
        named = PICTURE_SYNONYMS.get(picture_name.lower()) or nearest(picture_name, PICTURES)
        suggestion = f"`draw {picture_name} {run}`" if str(run) in PICTURES else named
        raise UserError(f"draw: expected RUN and one of {', '.join(PICTURES)}; got '{picture_name}'; try {suggestion}")
    picture.check_picture(out)
    picture.check_alt_text(out)
    for path in (out, picture.alt_text_path(out)):
        check_output(path, models=[run, *(also or ())])
    for name, (value, pictures) in {
        "input": (input, ("heads", "beam")), "kind": (kind, ("heads",)), "also": (also, ("curves",)),
        "beam-size": (beam_size, ("heads", "beam")), "length-penalty": (length_penalty, ("heads", "beam")),
        "sentences": (sentences, ("roles",)),
    }.items():  # fmt: skip
        if value not in (None, "") and picture_name not in pictures:
            raise UserError(
                f"draw: --{name} applies only to {' and '.join(pictures)}; got {picture_name}; try without --{name}"
            )
    use_device(device)
    if picture_name not in ("heads", "beam"):
        with Display() as display, display.work(f"drawing {picture_name}") as work:
            if picture_name == "curves":
                draw_curves_of([run, *(also or ())], out)
            elif picture_name == "memory":
                draw_memory_of(run, out)
            elif picture_name == "roles":
                draw_roles_of(run, out, sentences or DEFAULT_SENTENCES, work)
            else:
                draw_confusion_of(run, out)
        return
    if not input.strip():
        raise UserError(f'draw: expected a sentence for {picture_name}; got no --input; try --input "A dog runs ."')
    overrides = {
        name: value
        for name, value in {"beam_size": beam_size, "length_penalty": length_penalty}.items()
        if value is not None
    }
    if picture_name == "beam":
        return draw_beam_of(run, out, input, overrides)
    draw_heads_of(run, out, input, kind, overrides)


def load_for_search(run: Path, overrides: dict[str, Any]) -> tuple[Any, Any, str, dict[str, Any], str]:
    """Return the model, the tokenizer, the checkpoint's caption, the search options with `overrides`, and the task."""
    from train.run.checkpoint import load_with_origin

    model, tokenizer, config, origin = load_with_origin(run, "", print_stderr)
    search = {name: value for name, value in asdict(config.search).items() if name != "batch_tokens"}
    return model, tokenizer, origin.caption, search | overrides, config.data.task


def draw_heads_of(run: Path, out: Path, sentence: str, kind: str, overrides: dict[str, Any]) -> None:
    """Translate or parse a sentence, or read a text, and draw the attention of all heads."""
    from train.viewer.heads import draw_heads
    from train.viewer.inspection import (
        AXES,
        check_heads,
        constrained_model,
        inspect,
        inspect_text,
        output_text,
        source_ids,
        translate,
    )
    from train.viewer.label_inspection import inspect_encoder

    if kind:
        check_choice("--kind", kind, [*AXES])
    model, tokenizer, caption, search, task = load_for_search(run, overrides)
    if model.data_kind != "pairs":
        if kind or overrides:
            name = "kind" if kind else next(iter(overrides)).replace("_", "-")
            got = MODEL_DESCRIPTIONS[model.data_kind]
            raise UserError(f"--{name}: expected an encoder-decoder model; got {got}; omit --{name}")
        arguments = model, tokenizer, sentence
        inspection = inspect_text(*arguments) if model.data_kind == "text" else inspect_encoder(*arguments, task)
        draw_heads(inspection, sentence, out, caption, ["text"])
        return
    kinds = [kind] if kind else [name for name in AXES if model.attention_layers()[name]] or ["cross"]
    check_heads(model, kinds)
    src = source_ids(model, tokenizer, sentence)
    best = translate(constrained_model(model, tokenizer, sentence), src, search)[0]
    print(output_text(tokenizer, sentence, best.tokens))
    inspection = inspect(model, tokenizer, src, best.tokens, best.finished)
    draw_heads(inspection, sentence, out, caption, kinds)


def draw_beam_of(run: Path, out: Path, sentence: str, overrides: dict[str, Any]) -> None:
    """Translate or parse a sentence and draw its search tree."""
    from models.search.tree import SearchTree
    from train.viewer.beams import draw_beam
    from train.viewer.inspection import constrained_model, output_text, source_ids, translate

    model, tokenizer, caption, search, _ = load_for_search(run, overrides)
    if model.data_kind != "pairs":
        got = MODEL_DESCRIPTIONS[model.data_kind]
        raise UserError(f"{run}: expected a model that translates or parses; got {got}; try `draw RUN heads`")
    src = source_ids(model, tokenizer, sentence)
    tree = SearchTree()
    hypotheses = translate(constrained_model(model, tokenizer, sentence), src, search, observe=tree)
    print(output_text(tokenizer, sentence, hypotheses[0].tokens))
    draw_beam(tree, hypotheses, tokenizer, sentence, out, caption)


def draw_curves_of(runs: list[Path], out: Path) -> None:
    """Draw the metrics of runs over the steps."""
    from train.run.checkpoint import is_imported
    from train.viewer.curves import draw_curves, runs_by_name, series

    curves = {}
    for name, run in runs_by_name(runs).items():
        folder = RunFolder(run)
        curves[name] = series([entry for _, entry in folder.metric_lines()] if folder.metrics_file.exists() else [])
        if not curves[name]:
            if not folder.has_run_files():
                raise not_a_run_error(run, "a run folder")
            got, suggestion = "no metrics yet", "again after train.log_every updates"
            if is_imported(folder):
                got, suggestion = "an imported run, which has no training history", "a run that `train` has written"
            raise UserError(f"{run}: expected a run with metrics; got {got}; try {suggestion}")
    draw_curves(curves, out, ", ".join(f"{name}/metrics.jsonl" for name in curves))


def open_corpus(run: Path, part: str, config: RunConfig, tokenizer: TextTokenizer) -> PairCorpus:
    """Open the prepared "train" or "valid" text of a run. Raises UserError if the run has none."""
    if not getattr(config.data, name := TASKS[config.data.task].file_keys[part][0]):
        raise UserError(f"{run}: expected a run with data.{name}; got a run in which it is empty; try another run")
    return PairCorpus.open(RunFolder(run).data_path(part, config.data.prepared), tokenizer.special_ids)


def pairs_task(run: Path, config: RunConfig) -> Task:
    """Return the task of a run. Raises UserError unless it is translation or parsing."""
    task = TASKS[config.data.task]
    if task.data_kind != "pairs":
        raise UserError(f"{run}: expected a translation or parsing run; got {describe_model(task.name)}")
    return task


def draw_memory_of(run: Path, out: Path) -> None:
    """Draw the memory in use during one update."""
    from train.run.checkpoint import load_with_origin
    from train.text.batches import Batches
    from train.viewer.memory import draw_memory, measure_memory

    model, tokenizer, config, origin = load_with_origin(run, "", print_stderr)
    task = pairs_task(run, config)
    batches = Batches(open_corpus(run, "train", config, tokenizer), config.train.batch_tokens, config.train.seed)
    batch = batches.batch(batches.epoch_batches(1)[0])
    draw_memory(measure_memory(task, model, batch, config.train), batch.describe(), out, origin.caption)


def draw_confusion_of(run: Path, out: Path) -> None:
    """Draw the confusion matrix of a classifier or tagger on its validation text."""
    from train.run.checkpoint import load_with_origin
    from train.tasks.encoder_tasks import LabeledTask, LabelEvaluation
    from train.text.labeled_text import LabeledText
    from train.viewer.confusion import draw_confusion

    model, tokenizer, config, origin = load_with_origin(run, "", print_stderr)
    task = TASKS[config.data.task]
    if not isinstance(task, LabeledTask):
        raise UserError(f"{run}: expected a classifier or a tagger; got {describe_model(task.name)}")
    text = open_corpus(run, "valid", config, tokenizer)
    labeled = LabeledText(text, task.one_label_per_text)
    evaluation = LabelEvaluation(tokenizer, labeled)
    for examples, batch in task.validation_batches(labeled, config.train.batch_tokens):
        evaluation.add(model, examples, batch)
    draw_confusion(evaluation.scores(), out, origin.caption)


def draw_roles_of(run: Path, out: Path, sentences: int, work: Any) -> None:
    """Draw where heads attend on the validation text, and the effect of ablating each; report progress to `work`."""
    from train.run.checkpoint import load_with_origin
    from train.viewer.inspection import check_heads
    from train.viewer.roles import EvaluationText, draw_roles, measure_roles

    model, tokenizer, config, origin = load_with_origin(run, "", print_stderr)
    task = pairs_task(run, config)
    check_heads(model)
    text = EvaluationText(task, open_corpus(run, "valid", config, tokenizer), config, tokenizer, sentences)

    def report(n_done: int, n_heads: int) -> None:
        work.unit = "heads"
        work.total = n_heads
        work.done = n_done + 1

    full_model, head_roles = measure_roles(model, text, report)
    draw_roles(full_model, head_roles, text, out, origin.caption)
