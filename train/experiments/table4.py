"""Table 4 of the paper, constituency parsing: the Transformer from gold trees alone, and with trees parsed by machine.

    OUT/table4.settings.json   what all rows share: scale, settings, SHA-256 of the trees and of runs
       /test.mrg               the test sentences as they are scored
       /semi.mrg               gold trees, twice, and machine-made ones
       /rows/{wsj,semi}/       the run folder of a row
       /rows/ROW.json          its figures: a row that has them is done
       /rows/ROW.parsed        its trees of the test sentences
       /table4.{md,json}       all rows that are done, and other parsers', beside the paper's

A row that was stopped goes on from its newest checkpoint. Of the mean of its last checkpoints and the one of best F1 in
validation, that is tested which does better on the validation trees with the search of the test.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from train.errors import UserError
from train.experiments.folder import begin
from train.experiments.paper import PARSERS
from train.files import digest, read_sealed, write_json, write_text
from train.learn.training import train
from train.run.checkpoint import average_checkpoints, find_checkpoint, load_model, read_state
from train.run.config import RunConfig
from train.run.folder import RunFolder
from train.run.storage import STATE
from train.tasks.parsing.evalb import Report, score_files
from train.tasks.parsing.lexicon import Lexicon
from train.tasks.parsing.task import cleaned, parse_gold
from train.tasks.parsing.trees import Tree, write_tree

GOLD_TIMES = 2  # gold trees beside machine-made ones: they are better, and of the text that is tested
PAPER: dict[str, Any] = {"tokenizer": "bpe", "pretokenizer": "whitespace", "max_length": 512}
SMALL: dict[str, dict[str, Any]] = {
    "model": {"preset": "parsing-small"},
    "data": {"tokenizer": "affixes", "vocab_size": 8000, "leaves": "tags", "max_length": 200},
    "train": {
        **{"batch_tokens": 3072, "warmup_steps": 1000, "lr_scale": 0.8, "validate_every": 1000},
        **{"checkpoint_every": 250, "keep_last": 10},
    },
    "search": {"beam": 16, "alpha": 0.3, "max_extra": 300},
}
SCALES: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "paper": {
        row: {
            "model": {"preset": f"parsing-{row}"},
            "data": PAPER | {"vocab_size": types},
            "train": {"batch_tokens": 5000, "accumulate": 5, "warmup_steps": warmup, "keep_last": keep},
            "search": {"beam": 21, "alpha": 0.3, "max_extra": 300},
        }
        for row, types, warmup, keep in (("wsj", 16000, 16000, 5), ("semi", 32000, 4000, 20))
    },
    "small": {
        row: SMALL | {"train": SMALL["train"] | {"max_steps": steps}} for row, steps in (("wsj", 5000), ("semi", 13000))
    },
}
KINDS = {"wsj": "WSJ only", "semi": "semi-supervised"}


def run_table4(
    out: Path,
    trees: Mapping[str, Path],
    scale: str = "small",
    runs: Mapping[str, Path] | None = None,
    others: Mapping[str, Path] | None = None,
    settings: Sequence[str] = (),
    progress: bool = True,
) -> dict[str, Any]:
    """Trains the rows in the folder `out`, as far as that is not done, tests them, and returns the table.

    `trees`: files of "train", "valid", "test" and, for the row semi, "silver". `runs`: row -> run folder that is
    trained already. `others`: name -> trees of the test sentences that another parser found. Raises UserError for a
    mistake.
    """
    runs = runs or {}
    gold = {part: list(cleaned(trees[part])) for part in ("valid", "test")}
    rows = ["wsj", *(["semi"] if "silver" in trees or "semi" in runs else [])]
    shared: dict[str, Any] = {"scale": scale, "settings": [*settings]}
    for row in rows:
        row_config(row, scale, trees["train"], trees["valid"], settings)  # a mistake in it makes no folder
        shared[f"run {row}"] = identity(runs[row]) if row in runs else None
    begin(out, shared | {f"{part} trees": digest(path) for part, path in trees.items()}, "table4.settings.json")
    (out / "rows").mkdir(parents=True, exist_ok=True)
    test_file = out / "test.mrg"
    write_text(test_file, "".join(f"{write_tree(tree)}\n" for tree in gold["test"]))
    table: dict[str, Any] = {"table": 4, "scale": scale, "paper": PARSERS, "ours": {}, "others": {}}
    for name, path in (others or {}).items():
        table["others"][name] = figures(score_files(test_file, path))
    for row in rows:
        file = out / "rows" / f"{row}.json"
        if (result := read_sealed(file)) is None:
            run = RunFolder(runs.get(row, out / "rows" / row))
            trained = row in runs
            learned = trees["train"] if trained else learned_from(row, out, trees)
            config = row_config(row, scale, learned, trees["valid"], settings)
            if not trained:
                train(config, run.path, resume=bool(run.steps()), progress=progress)
            result = test(run, gold, learned, asdict(config.search), out / "rows" / f"{row}.parsed")
            write_json(file, result)
        table["ours"][row] = result
        write_table(out, table)
    return table


def identity(path: Path) -> str:
    """What tells a run from others, and from itself after more training; UserError where there is none."""
    steps = RunFolder(path).steps()
    return digest((steps[-1] if steps else find_checkpoint(path)) / STATE)


def learned_from(row: str, out: Path, trees: Mapping[str, Path]) -> Path:
    """The file of the trees that a row is trained on."""
    if row == "wsj":
        return trees["train"]
    file = out / "semi.mrg"
    if not file.is_file():
        every = [tree for path in [*[trees["train"]] * GOLD_TIMES, trees["silver"]] for tree in cleaned(path)]
        write_text(file, "".join(f"{write_tree(tree)}\n" for tree in every))
    return file


def row_config(row: str, scale: str, train_trees: Path, valid_trees: Path, settings: Sequence[str]) -> RunConfig:
    """The configuration of a row at a scale, `settings` (as for --set) on top."""
    tables = {table: dict(values) for table, values in SCALES[scale][row].items()}
    tables["data"] |= {"task": "parsing", "train_trees": str(train_trees), "valid_trees": str(valid_trees)}
    return RunConfig.from_dict(tables, settings, source=row)


def test(
    run: RunFolder, gold: Mapping[str, Sequence[Tree]], learned: Path, search: dict[str, Any], parsed: Path
) -> dict[str, Any]:
    """Chooses a checkpoint on the validation trees, and scores its trees of the test sentences, which go to a file.

    The lexicon of a run that has none, being of an older version, is that of the trees in the file `learned`.
    """
    if run.steps():
        average_checkpoints(run.path, min(10, len(run.steps())))
    candidates = {folder.name: folder for folder in (run.averaged, run.best) if folder.is_dir()}
    if not candidates:
        raise UserError(f"{run.path}: expected a trained parser; got no checkpoints; try another --run")
    chosen: dict[str, float] = {}
    for name, folder in candidates.items():
        model, tokenizer, _ = load_model(folder, "parsing")
        if tokenizer.tags and not tokenizer.lexicon and "lexicon" not in search:
            search = search | {"lexicon": Lexicon.learn(cleaned(learned))}
        chosen[name] = parse_gold(model, tokenizer, gold["valid"], **search)[1].all.f1
    best = max(chosen, key=chosen.__getitem__)
    model, tokenizer, _ = load_model(candidates[best], "parsing")
    result: dict[str, Any] = {"checkpoint": best, "valid_f1": chosen, "parameters": model.n_parameters()}
    for name, free in (("free", True), ("trees", False)):  # the search of the paper, and that kept to trees
        started = time.perf_counter()
        parses, report = parse_gold(model, tokenizer, gold["test"], free=free, **search)
        seconds = time.perf_counter() - started
        repaired = sum(found[0].repaired for found in parses)
        result[name] = figures(report) | {"repaired": repaired, "sentences_per_second": round(len(parses) / seconds, 2)}
    write_text(parsed, "".join(f"{found[0]}\n" for found in parses))
    trained = [entry for entry in run.metrics() if entry["kind"] == "train"][-1:]
    curve = [{key: e[key] for key in ("step", "loss", "f1", "repaired")} for e in run.metrics() if "f1" in e]
    state = read_state(run.steps()[-1])["run"] if run.steps() else {}
    result |= {"updates": state.get("step"), "seconds": round(state.get("seconds", 0.0)), "curve": curve}
    return result | {"tokens": trained[0]["tokens"] if trained else None}


def figures(report: Report) -> dict[str, Any]:
    """Those of EVALB, and F1 by length."""
    lengths = {name: [counts.sentences, round(counts.f1, 2)] for name, counts in report.by_length().items()}
    return report.figures() | {"by_length": lengths}


def write_table(out: Path, table: Mapping[str, Any]) -> None:
    """Writes table4.json and table4.md."""
    write_text(out / "table4.json", json.dumps(table, indent=1) + "\n")
    write_text(out / "table4.md", "\n".join(markdown(table)) + "\n")


def markdown(table: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the page."""
    yield from (f"# Table 4, scale {table['scale']}", "")
    if table["scale"] != "paper":
        yield "**Our figures cannot be set against the paper's:** they are of other and far fewer trees, and of a small"
        yield from ("model. What compares are the parsers below the paper's, learned and tested on the same trees.", "")
    yield from ("| parser | training | F1 |", "|---|---|---|")
    for parser, kind, f1 in table["paper"]:
        yield f"| {parser} | {kind} | {f1} |"
    yield "| | | |"
    for name, other in table["others"].items():
        yield f"| {name} | these trees | {other['f1']:.2f} |"
    found = dict(table["others"])
    for row, ours in table["ours"].items():
        yield f"| Transformer, ours | these trees, {KINDS[row]} | **{ours['trees']['f1']:.2f}** |"
        yield f"| the same, search of the paper | these trees, {KINDS[row]} | {ours['free']['f1']:.2f} |"
        found |= {f"ours, {KINDS[row]}": ours["trees"], f"the same, search of the paper ({row})": ours["free"]}
    names = list(next(iter(found.values()))["by_length"]) if found else []
    heads = ["parser", *FIGURES.values(), "up to 40", "repaired", "sentences/s", *(f"{name} words" for name in names)]
    yield from ("", "| " + " | ".join(heads) + " |", "|" + "---|" * len(heads))
    for name, f in found.items():
        cells = [name, *(str(f[key]) for key in FIGURES), str(f["up_to_40"]["f1"]), str(f.get("repaired", "-"))]
        cells += [str(f.get("sentences_per_second", "-")), *(str(f1) for _, f1 in f["by_length"].values())]
        yield "| " + " | ".join(cells) + " |"
    for row, ours in table["ours"].items():
        tested = ", ".join(f"{name} {f1:.2f}" for name, f1 in ours["valid_f1"].items())
        yield from ("", f"## {KINDS[row]}", "")
        yield f"{ours['parameters']:,} parameters, {ours['updates']:,} updates, {ours['seconds'] / 60:.0f} minutes."
        yield f"Tested: {ours['checkpoint']}, by its F1 on the validation trees ({tested})."
        yield from ("", "| update | loss | F1, greedy and free | repaired % |", "|---|---|---|---|")
        for e in ours["curve"]:
            yield f"| {e['step']:,} | {e['loss']:.4f} | {e['f1']:.2f} | {e['repaired']:.1f} |"


FIGURES = {
    "f1": "F1", "recall": "recall", "precision": "precision", "complete_match": "exact %", "crossing": "crossing",
    "error_sentences": "errors",
}  # fmt: skip
