"""Table 2 of the paper: BLEU and training cost of the models in the paper, and of models trained here.

The cost of a model trained here is computed in two ways. The first applies a formula to the number of training tokens.
The second is time x devices x sustained FLOP/s of a device, as in the paper (footnote 5). Only the second includes
overhead.

    OUT/en-de.translated, en-fr.translated     translations of the test text, written atomically
       /table2.{md,json}
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from train.errors import UserError, quote
from train.experiments.folder import open_table_folder
from train.experiments.paper import TABLE2
from train.files import digest, write_text
from train.json_files import read_json, read_sealed, write_sealed
from train.metrics.bleu import BLEUS, score_report
from train.run.checkpoint import find_checkpoint, is_imported, load_model, newest_state, run_of, task_of
from train.run.folder import RunFolder
from train.run.storage import model_config, read_state
from train.tasks.task import TaskError
from train.tasks.translation import best_translations
from train.text.lines import check_parallel, read_all_lines

PAIRS = ("en-de", "en-fr")
QUOTED_BLEU = {
    "en-de": "bleu_compound_13a",
    "en-fr": "bleu_13a",
}  # the variants for plain text that are most similar to the paper's BLEU


@dataclass(frozen=True)
class TrainedRun:
    """A run on one language pair, its test text, and the devices that trained it."""

    run: Path
    src: Path
    ref: Path
    devices: int = 1
    sustained: float = 0.0  # FLOP/s of one device; 0: unknown


def run_table2(out: Path, runs: Mapping[str, TrainedRun]) -> dict[str, Any]:
    """Translate and score the test texts with the `runs` for "en-de" and "en-fr"; write and return the table.

    A translation in `out` is reused if text, checkpoint and search are the same and it was not edited. Raises UserError
    for an invalid run or text, and for a folder that another command has written.
    """
    costs = {}
    for pair, run in runs.items():  # check before the first translation, which may take hours
        check_parallel(run.src, run.ref)
        costs[pair] = training_cost(run.run)
    open_table_folder(out, {"table": 2}, "table2.json")
    paper = [{name: text if name == "model" else float(text) for name, text in row.items()} for row in TABLE2]
    ours = {pair: score_run(out, pair, run, costs[pair]) for pair, run in runs.items()}
    table = {"table": 2, "paper": paper, "ours": ours}
    write_sealed(out / "table2.json", table)
    write_text(out / "table2.md", "\n".join(markdown(table)) + "\n")
    return table


def score_run(out: Path, pair: str, run: TrainedRun, cost: Mapping[str, Any]) -> dict[str, Any]:
    """Return the BLEU scores of one run, and its training cost."""
    hypotheses = translate_test(out / f"{pair}.translated", run)
    references = read_all_lines(run.ref)
    scores = score_report(hypotheses, references, metrics=BLEUS)["scores"]
    seconds = cost["seconds"] * run.devices
    return {
        "run": str(run.run), "checkpoint": find_checkpoint(run.run).name, **cost,
        "devices": run.devices, "sustained": run.sustained, "by_time": seconds * run.sustained or None,
        "quoted": QUOTED_BLEU[pair],
        "bleu": {key: {name: scores[key][name] for name in ("name", "score", "signature")} for key in BLEUS},
    }  # fmt: skip


def training_cost(path: Path) -> dict[str, Any]:
    """Return the updates, tokens, seconds and FLOPs of a run, from the state of its newest checkpoint.

    The ratio of source to target tokens comes from the prepared text, or is 1 if that text is missing. Only the time
    spent in updates counts. Raises UserError for a run whose cost is unknown, or whose task is not translation.
    """
    run = RunFolder(path)
    checkpoint = find_checkpoint(path)
    state = read_state(checkpoint)
    if (task := task_of(state)).name != "translation":
        raise TaskError(path, ["translation"], task)
    if (totals := newest_state(run)) is None:
        got, suggestion = "a run with averaged weights only", "a run with its step-N checkpoints"
        if is_imported(run):
            got, suggestion = "an imported run, which has no training history", "a run that `train` has written"
        elif checkpoint.samefile(path):
            got, suggestion = "a checkpoint", quote(run_of(checkpoint).path)
        raise UserError(
            f"{path}: expected a run with a step-N checkpoint, which records the number of tokens; got {got}; try "
            f"{suggestion}"
        )
    config = run.load_config()
    saved_config = model_config(state)
    meta = run.data_path("train", config.data.prepared) / "meta.json"
    source_fraction = 0.5
    if meta.is_file():
        tokens, pairs = (read_json(meta, "prepared text")[key] for key in ("tokens", "pairs"))
        source, target = (tokens[side] + pairs["kept"] for side in ("src", "tgt"))  # end tokens included
        source_fraction = source / (source + target)
    source, target = round(totals.tokens * source_fraction), round(totals.tokens * (1 - source_fraction))
    counted = saved_config.training_flops(source, target)
    progress = {"step": totals.step, "tokens": totals.tokens, "seconds": totals.seconds}
    return progress | {"preset": config.model.preset, "parameters": saved_config.n_parameters(), "counted": counted}


def translate_test(file: Path, run: TrainedRun) -> list[str]:
    """Return the translations of the test text, from `file` if it is up to date and was not edited."""
    model, tokenizer, config = load_model(run.run, "translation")
    inputs = {"text": digest(run.src), "state": digest(find_checkpoint(run.run) / "state.json")}
    inputs |= {"search": json.dumps(asdict(config.search))}
    record_file = file.with_name(f"{file.name}.json")
    if file.is_file() and read_sealed(record_file) == inputs | {"translations": digest(file)}:
        return file.read_text("utf-8").split("\n")[:-1]
    translations = best_translations(model, tokenizer, read_all_lines(run.src), **asdict(config.search))
    write_text(file, "".join(f"{line}\n" for line in translations))
    write_sealed(record_file, inputs | {"translations": digest(file)})
    return translations


def markdown(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the Markdown page."""
    yield from ("# Table 2", "")
    yield "BLEU on newstest2014 and training cost in FLOPs, as printed in the paper; the last rows"
    yield from ("were trained and measured here.", "")
    yield from ("| model | BLEU EN-DE | EN-FR | FLOPs EN-DE | EN-FR |", "|---|---|---|---|---|")
    for row in TABLE2:
        cells = [row.get(name, "-") for name in (*PAIRS, *(f"{pair} FLOPs" for pair in PAIRS))]
        yield f"| {row['model']} | {' | '.join(cells)} |"
    for pair, run in table["ours"].items():
        bleu = run["bleu"][run["quoted"]]["score"]
        by_time = describe_time_cost(run["by_time"])
        ours = {pair: f"**{bleu:.2f}**", f"{pair} FLOPs": f"{scientific(run['counted'])} counted, {by_time}"}
        columns = [ours.get(name, "") for name in (*PAIRS, *(f"{p} FLOPs" for p in PAIRS))]
        yield f"| ours, {run['preset']}, {run['step']:,} updates | {' | '.join(columns)} |"
    for pair, run in table["ours"].items():
        yield from ("", f"## Ours, {pair}", "")
        yield f"{run['parameters']:,} parameters, {run['step']:,} updates, {run['tokens']:,} tokens in"
        device = f"{run['devices']} x {run['sustained'] / 1e12:g} TFLOP/s" if run["sustained"] else "no --tflops given"
        yield f"{run['seconds'] / 3600:.2f} hours of updates. Cost: {scientific(run['counted'])} FLOPs by the formula"
        yield "(6 per weight and token, plus the attention matmuls),"
        yield f"{describe_time_cost(run['by_time'])} ({device})."
        yield from ("", "| BLEU | score | signature |", "|---|---|---|")
        for key, row in run["bleu"].items():
            mark = " (in the table above)" if key == run["quoted"] else ""
            signature = row["signature"].replace("|", "\\|")
            yield f"| {row['name']}{mark} | {row['score']:.2f} | {signature} |"


def describe_time_cost(flops: float | None) -> str:
    """Format the cost computed from the training time."""
    return f"{scientific(flops)} by time" if flops else "unknown by time"


def scientific(number: float) -> str:
    """Format a number like the paper's tables: 3.3e18."""
    return f"{number:.1e}".replace("e+", "e")
