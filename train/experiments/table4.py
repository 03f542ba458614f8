"""Table 4 of the paper: parsers trained on gold trees, and on gold and automatically parsed trees.

    OUT/table4.settings.json   settings of all rows: scale, configuration changes, SHA-256 of the trees and runs
       /test.mrg               the test trees
       /semi.mrg               training trees of the row semi: gold trees, twice, and automatically parsed ones
       /rows/{wsj,semi}/       run folder of a row
       /rows/ROW.json          its results; a row that has this file is finished
       /rows/ROW.parsed        its trees of the test sentences
       /table4.{md,json}       all finished rows, other parsers and the paper's results

An interrupted row continues from its newest checkpoint. There are two candidates for the test: the average of the last
checkpoints, and the checkpoint with the best validation F1. The one that scores better on the validation trees, with
the same search as in the test, is tested.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from train.errors import UserError, quote
from train.experiments.folder import open_table_folder, write_table
from train.experiments.paper import TABLE4
from train.files import digest, write_text
from train.json_files import read_sealed, write_sealed
from train.learn.training import train
from train.run.average import average_checkpoints
from train.run.checkpoint import find_checkpoint, load_model, read_state
from train.run.config import RunConfig
from train.run.folder import RunFolder
from train.run.storage import STATE
from train.tasks.parsing.evalb import Report, score_files
from train.tasks.parsing.lexicon import Lexicon
from train.tasks.parsing.task import parse_gold, read_clean_trees
from train.tasks.parsing.trees import Tree, write_tree

GOLD_COPIES = 2  # how often the row semi contains each gold tree; gold trees are better and closer to the test trees
PAPER: dict[str, Any] = {"tokenizer": "bpe", "pretokenizer": "whitespace", "max_length": 512}
SMALL: dict[str, dict[str, Any]] = {
    "model": {"preset": "parsing-small"},
    "data": {"tokenizer": "affixes", "vocab_size": 8000, "tree_leaves": "tags", "max_length": 200},
    "train": {
        "batch_tokens": 3072,
        "warmup_steps": 1000,
        "lr_scale": 0.8,
        "validate_every": 1000,
        "checkpoint_every": 250,
        "keep_last": 10,
    },
    "search": {"beam_size": 16, "length_penalty": 0.3, "max_extra_tokens": 300},
}
SCALES: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "paper": {
        row: {
            "model": {"preset": f"parsing-{row}"},
            "data": PAPER | {"vocab_size": vocab_size},
            "train": {
                "batch_tokens": 5000,
                "gradient_accumulation_steps": 5,
                "warmup_steps": warmup,
                "keep_last": keep,
            },
            "search": {"beam_size": 21, "length_penalty": 0.3, "max_extra_tokens": 300},
        }
        for row, vocab_size, warmup, keep in (("wsj", 16000, 16000, 5), ("semi", 32000, 4000, 20))
    },
    "small": {
        row: SMALL | {"train": SMALL["train"] | {"max_steps": steps}} for row, steps in (("wsj", 5000), ("semi", 13000))
    },
}
ROW_NAMES = {"wsj": "WSJ only", "semi": "semi-supervised"}


def run_table4(
    out: Path,
    trees: Mapping[str, Path],
    scale: str = "small",
    runs: Mapping[str, Path] | None = None,
    others: Mapping[str, Path] | None = None,
    overrides: Sequence[str] = (),
    progress: bool = True,
) -> dict[str, Any]:
    """Train and test the unfinished rows in the folder `out` and return the table.

    Args:
        out: folder of the table.
        trees: files of "train", "valid", "test" and, for the row semi, "silver".
        scale: key of SCALES.
        runs: maps a row to the folder of a run that is already trained.
        others: maps the name of another parser to a file with its trees of the test sentences.
        overrides: `table.key=value` strings for every row, as for --set.
        progress: whether to print the progress of each training run.

    Raises UserError for an invalid argument.
    """
    runs = runs or {}
    gold = {part: list(read_clean_trees(trees[part])) for part in ("valid", "test")}
    rows = ["wsj", *(["semi"] if "silver" in trees or "semi" in runs else [])]
    shared: dict[str, Any] = {"scale": scale, "settings": [*overrides]}
    for row in rows:
        row_config(row, scale, trees["train"], trees["valid"], overrides)  # raise errors before the folder is created
        shared[f"run {row}"] = run_digest(runs[row]) if row in runs else None
    open_table_folder(
        out, shared | {f"{part} trees": digest(path) for part, path in trees.items()}, "table4.settings.json"
    )
    (out / "rows").mkdir(parents=True, exist_ok=True)
    test_file = out / "test.mrg"
    write_text(test_file, "".join(f"{write_tree(tree)}\n" for tree in gold["test"]))
    table: dict[str, Any] = {"table": 4, "scale": scale, "paper": TABLE4, "ours": {}, "others": {}}
    for name, path in (others or {}).items():
        table["others"][name] = report_dict(score_files(test_file, path))
    for row in ROW_NAMES:
        file = out / "rows" / f"{row}.json"
        if (result := read_sealed(file)) is None:
            if row not in rows:
                continue
            run = RunFolder(runs.get(row, out / "rows" / row))
            is_trained = row in runs
            train_trees = trees["train"] if is_trained else training_trees(row, out, trees)
            config = row_config(row, scale, train_trees, trees["valid"], overrides)
            if not is_trained:
                train(config, run.path, resume=bool(run.step_paths()), progress=progress)
            result = evaluate_run(run, gold, train_trees, asdict(config.search), out / "rows" / f"{row}.parsed")
            write_sealed(file, result)
        table["ours"][row] = result
        write_table(out, "table4", table, markdown(table))
    return table


def run_digest(path: Path) -> str:
    """Return a hash of the run's newest checkpoint. Raises UserError if the run has no checkpoint."""
    steps = RunFolder(path).step_paths()
    return digest((steps[-1] if steps else find_checkpoint(path)) / STATE)


def training_trees(row: str, out: Path, trees: Mapping[str, Path]) -> Path:
    """Return the file of a row's training trees; create it for the row semi."""
    if row == "wsj":
        return trees["train"]
    file = out / "semi.mrg"
    if not file.is_file():
        semi = [tree for path in [*[trees["train"]] * GOLD_COPIES, trees["silver"]] for tree in read_clean_trees(path)]
        write_text(file, "".join(f"{write_tree(tree)}\n" for tree in semi))
    return file


def row_config(row: str, scale: str, train_trees: Path, valid_trees: Path, overrides: Sequence[str]) -> RunConfig:
    """Return the configuration of a row at a scale, and the `overrides` (as for --set)."""
    tables = {table: dict(values) for table, values in SCALES[scale][row].items()}
    tables["data"] |= {"task": "parsing", "train_trees": str(train_trees), "valid_trees": str(valid_trees)}
    return RunConfig.from_dict(tables, overrides, source=row)


def evaluate_run(
    run: RunFolder, gold: Mapping[str, Sequence[Tree]], train_trees: Path, search: dict[str, Any], parsed: Path
) -> dict[str, Any]:
    """Select a checkpoint on the validation trees, parse the test sentences into the file `parsed` and score them.

    If the tokenizer comes from an earlier version and has no lexicon, the lexicon is built from `train_trees`.
    """
    if run.step_paths():
        average_checkpoints(run.path, min(10, len(run.step_paths())))
    candidates = {folder.name: folder for folder in (run.averaged_path, run.best_path) if folder.is_dir()}
    if not candidates:
        raise UserError(
            f"{run.path}: expected a trained parser; got a run without checkpoints; "
            f"try `npx-transformer train --resume --out {quote(run.path)}`"
        )
    valid_f1: dict[str, float] = {}
    for name, folder in candidates.items():
        model, tokenizer, _ = load_model(folder, "parsing")
        if tokenizer.uses_tags and not tokenizer.lexicon and "lexicon" not in search:
            search = search | {"lexicon": Lexicon.from_trees(read_clean_trees(train_trees))}
        valid_f1[name] = parse_gold(model, tokenizer, gold["valid"], **search)[1].total.f1
    best = max(valid_f1, key=valid_f1.__getitem__)
    model, tokenizer, _ = load_model(candidates[best], "parsing")
    result: dict[str, Any] = {"checkpoint": best, "valid_f1": valid_f1, "parameters": model.n_parameters()}
    for name, free in (("free", True), ("trees", False)):  # the paper's search, then one that allows only valid trees
        started = time.perf_counter()
        parses, report = parse_gold(model, tokenizer, gold["test"], free=free, **search)
        seconds = time.perf_counter() - started
        repaired = sum(hypotheses[0].repaired for hypotheses in parses)
        result[name] = report_dict(report) | {
            "repaired": repaired,
            "sentences_per_second": round(len(parses) / seconds, 2),
        }
    write_text(parsed, "".join(f"{hypotheses[0]}\n" for hypotheses in parses))
    updates = [entry for entry in run.metrics() if entry["kind"] == "train"][-1:]
    curve = [{key: e[key] for key in ("step", "loss", "f1", "repaired")} for e in run.metrics() if "f1" in e]
    state = read_state(run.step_paths()[-1])["run"] if run.step_paths() else {}
    result |= {"updates": state.get("step"), "seconds": round(state.get("seconds", 0.0)), "curve": curve}
    return result | {"tokens": updates[0]["tokens"] if updates else None}


def report_dict(report: Report) -> dict[str, Any]:
    """Return EVALB's summary and the F1 by sentence length."""
    lengths = {name: [counts.sentences, round(counts.f1, 2)] for name, counts in report.by_length().items()}
    return report.as_dict() | {"by_length": lengths}


def markdown(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the Markdown page."""
    yield from (f"# Table 4, scale {table['scale']}", "")
    if table["scale"] != "paper":
        yield "**These results are not comparable with the paper's:** they come from different, far fewer trees and a"
        yield "small model. The parsers below the paper's in this table are comparable: they are trained and tested on"
        yield "the same trees."
        yield ""
    yield from ("| parser | training | F1 |", "|---|---|---|")
    for parser, training, f1 in table["paper"]:
        yield f"| {parser} | {training} | {f1} |"
    yield "| | | |"
    for name, other in table["others"].items():
        yield f"| {name} | these trees | {other['f1']:.2f} |"
    scores = dict(table["others"])
    for row, ours in table["ours"].items():
        yield f"| Transformer, ours | these trees, {ROW_NAMES[row]} | **{ours['trees']['f1']:.2f}** |"
        yield f"| the same, unconstrained as in the paper | these trees, {ROW_NAMES[row]} | {ours['free']['f1']:.2f} |"
        scores |= {f"ours, {ROW_NAMES[row]}": ours["trees"], f"the same, unconstrained ({row})": ours["free"]}
    lengths = list(next(iter(scores.values()))["by_length"]) if scores else []
    columns = [
        "parser",
        *COLUMNS.values(),
        "up to 40",
        "repaired",
        "sentences/s",
        *(f"{name} words" for name in lengths),
    ]
    yield from ("", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns))
    for name, f in scores.items():
        cells = [name, *(str(f[key]) for key in COLUMNS), str(f["up_to_40"]["f1"]), str(f.get("repaired", "-"))]
        cells += [str(f.get("sentences_per_second", "-")), *(str(f1) for _, f1 in f["by_length"].values())]
        yield "| " + " | ".join(cells) + " |"
    for row, ours in table["ours"].items():
        candidates = ", ".join(f"{name} {f1:.2f}" for name, f1 in ours["valid_f1"].items())
        yield from ("", f"## {ROW_NAMES[row]}", "")
        training = f", {ours['updates']:,} updates, {ours['seconds'] / 60:.0f} minutes" if ours["updates"] else ""
        yield f"{ours['parameters']:,} parameters{training}."
        yield f"Tested: {ours['checkpoint']}, selected by F1 on the validation trees ({candidates})."
        yield from ("", "| update | loss | F1, greedy, unconstrained | repaired % |", "|---|---|---|---|")
        for e in ours["curve"]:
            yield f"| {e['step']:,} | {e['loss']:.4f} | {e['f1']:.2f} | {e['repaired']:.1f} |"


COLUMNS = {
    "f1": "F1", "recall": "recall", "precision": "precision", "complete_match": "exact %", "crossing": "crossing",
    "error_sentences": "errors",
}  # fmt: skip
