"""`draw`: a picture of a run as PNG or SVG, its alternative text beside it."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from train.cli.app import Device, RunPath, app, use_device
from train.cli.options import number, search_key, text, warn
from train.errors import UserError, nearest

WHAT = ("heads", "beam", "curves", "memory", "roles")


@app.command(
    epilog="heads: all heads of all layers on a sentence. beam: the tree of a search for its translation. curves: loss,"
    " scores, rate, gradient, speed, of several runs with --also. memory: bytes over the operations of one update."
    " roles: where heads look on the validation text, and what is lost without each. Beside F.png or F.svg stands"
    " F.alt.txt, the picture in words. The same input gives the same bytes."
)
def draw(
    run: RunPath,
    what: Annotated[str, typer.Argument(metavar="|".join(WHAT), help="What to draw.", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="F.png|F.svg", help="The picture.", show_default=False)],
    input: Annotated[
        str, text("--input", metavar="SENTENCE", help="heads, beam: what is translated.", show_default=False)
    ] = "",
    kind: Annotated[
        str, typer.Option(metavar="encoder|decoder|cross", help="heads: of one kind; default: all three.")
    ] = "",
    also: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="curves: one run more; may be repeated.")
    ] = None,
    sentences: Annotated[
        int | None, number(int, "[1, 1000000]", help="roles: sentences of the validation text; default: 100.")
    ] = None,
    beam: Annotated[int | None, search_key("beam", help="Hypotheses a sentence; default: the run's.")] = None,
    alpha: Annotated[float | None, search_key("alpha", help="Length penalty's exponent; default: the run's.")] = None,
    device: Device = "cpu",
) -> None:
    """Draw what a trained model does, or how it was trained."""
    from train.viewer import picture

    if what not in WHAT:
        raise UserError(f"draw: expected one of {', '.join(WHAT)}; got '{what}'; try {nearest(what, WHAT)}")
    picture.check(out)
    picture.check_alt_text(out)
    for name, (value, of) in {
        "input": (input, ("heads", "beam")), "kind": (kind, ("heads",)), "also": (also, ("curves",)),
        "beam": (beam, ("heads", "beam")), "alpha": (alpha, ("heads", "beam")), "sentences": (sentences, ("roles",)),
    }.items():  # fmt: skip
        if value not in (None, "") and what not in of:
            raise UserError(f"draw: expected --{name} for {' or '.join(of)} alone; got it for {what}; try without it")
    if what == "curves":
        return curves([run, *(also or ())], out)
    use_device(device)
    if what == "memory":
        return memory(run, out)
    if what == "roles":
        return roles(run, out, sentences or 100)
    if not input.strip():
        raise UserError(f'draw: expected a sentence for {what}; got none; try --input "A dog runs ."')
    given = {name: value for name, value in {"beam": beam, "alpha": alpha}.items() if value is not None}
    if what == "beam":
        return tree(run, out, input, given)
    heads(run, out, input, kind, given)


def loaded(run: Path, given: dict[str, Any]) -> tuple[Any, Any, str, dict[str, Any]]:
    """Model, tokenizer, origin and the options of a search."""
    from train.run.checkpoint import load_with_origin

    model, tokenizer, config, source = load_with_origin(run, "translation", warn)
    s = config.search
    search = {"beam": s.beam, "alpha": s.alpha, "penalty": s.penalty, "max_extra": s.max_extra}
    return model, tokenizer, source, search | given


def heads(run: Path, out: Path, sentence: str, kind: str, given: dict[str, Any]) -> None:
    from train.viewer.heads import draw_heads
    from train.viewer.inspection import AXES, inspect, source_ids, translate

    if kind and kind not in AXES:
        raise UserError(f"--kind: expected one of {', '.join(AXES)}; got '{kind}'; try {nearest(kind, AXES)}")
    model, tokenizer, source, search = loaded(run, given)
    src = source_ids(model, tokenizer, sentence)
    best = translate(model, src, search)[0]
    print(tokenizer.decode(best.tokens))
    inspection = inspect(model, tokenizer, src, best.tokens)
    draw_heads(inspection, sentence, out, source, [kind] if kind else tuple(AXES))


def tree(run: Path, out: Path, sentence: str, given: dict[str, Any]) -> None:
    from models.search.tree import Tree
    from train.viewer.beams import draw_beam
    from train.viewer.inspection import source_ids, translate

    model, tokenizer, source, search = loaded(run, given)
    src, seen = source_ids(model, tokenizer, sentence), Tree()
    best = translate(model, src, search, observe=seen)
    print(tokenizer.decode(best[0].tokens))
    draw_beam(seen, best, tokenizer, sentence, out, source)


def curves(runs: list[Path], out: Path) -> None:
    from train.run.folder import RunFolder
    from train.viewer.curves import by_name, draw_curves, series

    found = {}
    for name, run in by_name(runs).items():
        found[name] = series(RunFolder(run).metrics())
        if not found[name]:
            raise UserError(
                f"{run}: expected a run with metrics.jsonl; got nothing to draw; try the --out of a training"
            )
    draw_curves(found, out, ", ".join(f"{name}/metrics.jsonl" for name in found))


def pairs_of(run: Path, part: str, config: Any, tokenizer: Any) -> Any:
    """The prepared text of a run."""
    from train.run.folder import RunFolder
    from train.text.corpus import Corpus

    return Corpus.open(RunFolder(run).data(part, config.data.prepared), tokenizer.special)


def memory(run: Path, out: Path) -> None:
    from train.run.checkpoint import load_with_origin
    from train.tasks import TASKS
    from train.viewer.memory import draw_memory, measure_memory

    model, tokenizer, config, source = load_with_origin(run, "", warn)
    task = TASKS[config.data.task]
    if task.examples != "pairs":
        raise UserError(f"{run}: expected a run that learns from pairs; got the task {task.name}; try another run")
    batches = task.batches(pairs_of(run, "train", config, tokenizer), config.train.batch_tokens, config.train.seed)
    batch = batches.batch(batches.epoch(1)[0])
    draw_memory(measure_memory(task, model, batch, config.train), batch.describe(), out, source)


def roles(run: Path, out: Path, sentences: int) -> None:
    from train.run.checkpoint import load_with_origin
    from train.viewer.roles import EvaluationText, draw_roles, measure_roles

    model, tokenizer, config, source = load_with_origin(run, "translation", warn)
    text = EvaluationText(pairs_of(run, "valid", config, tokenizer), config, tokenizer, sentences)

    def told(done: int, of: int) -> None:
        if sys.stderr.isatty():
            print(f"\rhead {done + 1} of {of}", end="" if done + 1 < of else "\n", file=sys.stderr, flush=True)

    baseline, measured_roles = measure_roles(model, text, told)
    draw_roles(baseline, measured_roles, len(text.pairs), out, source)
