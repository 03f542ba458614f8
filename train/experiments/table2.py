"""Table 2 of the paper: every model it is compared with beside ours, BLEU and the operations of the whole training.

Ours are counted twice: by our formula for each token that the run trained on, and as the paper counts its own and
others', time x devices x what a device sustains (footnote 5). The first leaves out what is wasted, the second does not.

    OUT/en-de.translated, en-fr.translated     of the test text, written whole or not at all
       /table2.{md,json}
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from train.errors import UserError
from train.experiments.folder import begin
from train.experiments.paper import TABLE2
from train.files import digest, read_json, read_sealed, write_json, write_text
from train.metrics.bleu import BLEUS, score_report
from train.run.checkpoint import find_checkpoint, load_model, model_config, read_state
from train.run.config import RunConfig
from train.run.folder import RunFolder
from train.tasks.translation import translate_lines
from train.text.lines import read_lines

PAIRS = ("en-de", "en-fr")
QUOTED = {"en-de": "bleu_compound_13a", "en-fr": "bleu_13a"}  # of plain text the nearest to what the paper gives


@dataclass(frozen=True)
class Ours:
    """A run of ours on one language pair, the test text, and the machine it was trained on."""

    run: Path
    src: Path
    ref: Path
    devices: int = 1
    sustained: float = 0.0  # FLOP/s of one; 0: not known


def run_table2(out: Path, ours: Mapping[str, Ours]) -> dict[str, Any]:
    """Translates the tests with the runs `ours` (by "en-de", "en-fr"), scores and writes the table; returns it.

    A translation that `out` has of the same checkpoint and text is taken. Raises UserError for a bad run or text, and
    for a folder of something else.
    """
    begin(out, {"table": 2}, "table2.json")
    table = {"table": 2, "paper": TABLE2, "ours": {pair: figures(out, pair, one) for pair, one in ours.items()}}
    write_json(out / "table2.json", table)
    write_text(out / "table2.md", "\n".join(markdown(table)) + "\n")
    return table


def figures(out: Path, pair: str, ours: Ours) -> dict[str, Any]:
    """BLEU and operations of one run."""
    found, references = translated(out / f"{pair}.translated", ours), [*chain.from_iterable(read_lines(ours.ref))]
    scores = score_report(found, references, ter=False)["scores"]
    cost = training_cost(ours.run)
    seconds = cost["seconds"] * ours.devices
    return {
        "run": str(ours.run), "checkpoint": find_checkpoint(ours.run).name, **cost,
        "devices": ours.devices, "sustained": ours.sustained, "by_time": seconds * ours.sustained or None,
        "quoted": QUOTED[pair],
        "bleu": {key: {name: scores[key][name] for name in ("name", "score", "signature")} for key in BLEUS},
    }  # fmt: skip


def training_cost(path: Path) -> dict[str, Any]:
    """Updates, tokens, seconds and our count of the operations of a run, from its metrics.

    The tokens of both sides are told apart by the prepared text, or taken as equal where that is gone. Of the seconds
    of a run only those of updates count.
    """
    run = RunFolder(path)
    trained = [entry for entry in run.metrics() if entry["kind"] == "train"]
    if not trained:
        raise UserError(f"{path}: expected a run with metrics; got none in {run.metrics_file}; try another run")
    last, config = trained[-1], RunConfig.load(run.config_file)
    shape = model_config(read_state(find_checkpoint(path)))
    meta, share = run.data("train", config.data.prepared) / "meta.json", 0.5
    if meta.is_file():
        tokens, pairs = (read_json(meta, "prepared text")[key] for key in ("tokens", "pairs"))
        source, target = (tokens[side] + pairs["kept"] for side in ("src", "tgt"))  # ends of sentences count
        share = source / (source + target)
    source, target = round(last["tokens"] * share), round(last["tokens"] * (1 - share))
    counted = shape.training_flops(source, target)
    done = {"step": last["step"], "tokens": last["tokens"], "seconds": last["seconds"]}
    return done | {"preset": config.model.preset, "parameters": shape.n_parameters(), "counted": counted}


def translated(file: Path, ours: Ours) -> list[str]:
    """The translations of the test text."""
    checkpoint = find_checkpoint(ours.run)
    made_of = {"text": digest(ours.src), "state": digest(checkpoint / "state.json")}
    note = file.with_name(f"{file.name}.json")
    if file.is_file() and read_sealed(note) == made_of:
        return file.read_text("utf-8").split("\n")[:-1]
    model, tokenizer, config = load_model(ours.run, "translation")
    lines = [*chain.from_iterable(read_lines(ours.src))]
    found = [best[0][0] for best in translate_lines(model, tokenizer, lines, **asdict(config.search))]
    note.unlink(missing_ok=True)
    write_text(file, "".join(f"{line}\n" for line in found))
    write_json(note, made_of)
    return found


def markdown(table: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the page."""
    yield from ("# Table 2", "", "BLEU on newstest2014, and floating-point operations of the training, as the paper")
    yield from ("has them; at the end what was trained and measured here.", "")
    yield from ("| model | BLEU EN-DE | EN-FR | FLOPs EN-DE | EN-FR |", "|---|---|---|---|---|")
    for row in table["paper"]:
        bleu = [f"{row[pair]:.2f}".rstrip("0").rstrip(".") if pair in row else "-" for pair in PAIRS]
        flops = [power(row[f"{pair} FLOPs"]) if f"{pair} FLOPs" in row else "-" for pair in PAIRS]
        yield f"| {row['model']} | {' | '.join(bleu)} | {' | '.join(flops)} |"
    for pair, one in table["ours"].items():
        bleu, by_time = one["bleu"][one["quoted"]]["score"], one["by_time"]
        cells = {pair: f"**{bleu:.2f}**", f"{pair} FLOPs": f"{power(one['counted'])} counted, {said(by_time)}"}
        columns = [cells.get(name, "") for name in (*PAIRS, *(f"{p} FLOPs" for p in PAIRS))]
        yield f"| ours, {one['preset']}, {one['step']:,} updates | {' | '.join(columns)} |"
    for pair, one in table["ours"].items():
        yield from ("", f"## Ours, {pair}", "")
        yield f"{one['parameters']:,} parameters, {one['step']:,} updates, {one['tokens']:,} tokens in"
        device = f"{one['devices']} x {one['sustained'] / 1e12:g} TFLOP/s" if one["sustained"] else "no --tflops given"
        yield f"{one['seconds'] / 3600:.2f} hours of updates: {power(one['counted'])} operations by the formula (6 for"
        yield f"each weight and token that passes it, and the attention's products), {said(one['by_time'])} ({device})."
        yield from ("", "| BLEU | score | signature |", "|---|---|---|")
        for key, row in one["bleu"].items():
            mark = " (the line above)" if key == one["quoted"] else ""
            signature = row["signature"].replace("|", "\\|")
            yield f"| {row['name']}{mark} | {row['score']:.2f} | {signature} |"


def said(by_time: float | None) -> str:
    """The second count in words."""
    return f"{power(by_time)} by time" if by_time else "by time unknown"


def power(number: float) -> str:
    """3.3e18, as the paper's tables are quoted."""
    return f"{number:.1e}".replace("e+", "e")
