"""Table 3 of the paper, its variations of the base model: each row trained, averaged, translated with and scored.

    OUT/settings.json          what all rows share: scale, steps, settings, SHA-256 of the text
       /tokenizer.json, data/  learned and prepared once, for all rows
       /rows/NAME/             the run folder of a row
       /rows/NAME/result.json  its figures: a row that has them is done
       /table3.{md,json,png}   all rows that are done, beside the paper's; written anew after each row

A row that was stopped goes on from its newest checkpoint. The figures of a row are those of its last weights, as the
paper's are (section 6.2: "no checkpoint averaging"); those of the average of its last checkpoints stand beside them.
"""

import shutil
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from models import TransformerConfig
from train.errors import UserError, nearest, one_line
from train.experiments.comparison import ROWS, write_comparison
from train.experiments.folder import begin
from train.files import digest, read_sealed, write_json
from train.learn.signals import Signals
from train.learn.training import train
from train.learn.validation import Validation
from train.metrics.bleu import BLEUS, bleu
from train.run.checkpoint import average_checkpoints, find_checkpoint, load_model
from train.run.config import RunConfig, preset_values, to_toml
from train.run.folder import RunFolder
from train.tasks import TASKS
from train.tasks.translation import translate_lines
from train.text.lines import read_lines

TASK = TASKS["translation"]
BLEU = "bleu_13a"


@dataclass(frozen=True)
class Scale:
    """How large the models and trainings of all rows are: what the paper's sizes are divided by, base's updates."""

    width: int  # d_model, d_ff, d_k and d_v by this, for as many heads
    depth: int  # layers by this
    steps: int  # of every row but big, which has three times as many, as in the paper
    checkpoints: int  # written in the course of these; the last 5 are averaged
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # other settings

    def model(self, row: str) -> dict[str, Any]:
        """[model] of a row: the paper's, divided."""
        if self.width == self.depth == 1:
            return {}
        c = TransformerConfig.preset(row, vocab_size=37000)
        sizes = {"d_model": c.d_model, "d_ff": c.d_ff, "d_k": c.key_size, "d_v": c.value_size}
        return {name: size // self.width for name, size in sizes.items()} | {"n_layers": c.n_layers // self.depth}


SCALES = {
    "paper": Scale(1, 1, 100_000, 66),
    "tiny": Scale(
        8, 2, 2_600, 25, {"data": {"vocab_size": 4000}, "train": {"batch_tokens": 1024, "warmup_steps": 400}}
    ),
}


def run_table3(
    out: Path,
    texts: Mapping[str, str],
    scale: str = "paper",
    rows: Iterable[str] = (),
    steps: int | None = None,
    settings: Sequence[str] = (),
    progress: bool = True,
) -> dict[str, Any]:
    """Trains and scores `rows` (none: all) in the folder `out`, as far as that is not done; returns the comparison.

    `texts`: the keys of [data] that name files: train_src, train_tgt, valid_src, valid_tgt, all of them needed. `steps`
    are base's updates, `settings` as for --set, for every row. A row that fails is told and tried again next time; the
    others go on. Raises UserError for a mistake, and at the end where a row failed.
    """
    rows = [check_row(row) for row in rows] or [*ROWS]
    steps = steps or SCALES[scale].steps
    common = row_config("base", scale, steps, texts, settings).data
    files = TASK.texts(common)
    if "valid" not in files:
        raise UserError("data.valid_src: expected a text to score on; got none; try --valid-src FILE --valid-tgt FILE")
    begin(out, {
        "scale": scale, "steps": steps, "settings": [*settings],
        "text": {name: digest(texts[name]) for name in sorted(texts)},
    })  # fmt: skip
    shared = [*settings, f"data.prepared={to_toml(str(out / 'data'))}"]
    if common.tokenizer in TASK.tokenizers:
        tokenizer = out / "tokenizer.json"
        shared.append(f"data.tokenizer={to_toml(str(tokenizer))}")
        if not tokenizer.is_file():
            print("learning the vocabulary of all rows", file=sys.stderr, flush=True)
            TASK.learn_tokenizer(common, files["train"]).save(tokenizer)
    failed: dict[str, str] = {}
    sizes = SCALES[scale].width, SCALES[scale].depth
    for number, row in enumerate(rows, 1):
        if row in results(out):
            continue
        print(f"row {number} of {len(rows)}: {row}", file=sys.stderr, flush=True)
        try:
            run_row(row, out, row_config(row, scale, steps, texts, shared), progress)
        except UserError as error:
            failed[row] = str(error)
        except Exception as error:  # one row's fault is no reason to leave out the others
            failed[row] = f"{type(error).__name__}: {one_line(error)}"
            traceback.print_exc()
        if row in failed:
            print(f"{row} failed: {failed[row]}", file=sys.stderr, flush=True)
        comparison = write_comparison(out, results(out), scale, sizes, failed)
    comparison = write_comparison(out, results(out), scale, sizes, failed)
    if failed:
        first = next(iter(failed))
        raise UserError(
            f"reproduce table3: expected {len(rows)} rows; got {len(rows) - len(failed)}, without {', '.join(failed)} "
            f"({first}: {failed[first]}); try the same command again, which runs only these"
        )
    return comparison


def check_row(row: str) -> str:
    """The row; UserError where the table has no such row."""
    if row not in ROWS:
        raise UserError(f"--rows: expected rows of {', '.join(ROWS)}; got '{row}'; try {nearest(row, ROWS)}")
    return row


def row_config(row: str, scale: str, steps: int, texts: Mapping[str, str], settings: Sequence[str]) -> RunConfig:
    """The configuration of a row: the preset's at this scale, what the scale sets, then `settings`."""
    size = SCALES[scale]
    updates = preset_values(row)["train"]["max_steps"] * steps // 100_000
    every = max(1, updates // size.checkpoints)
    how = {"max_steps": max(1, updates), "checkpoint_every": every, "keep_last": 5, "validate_bleu": False}
    tables: dict[str, dict[str, Any]] = {
        "model": {"preset": row, **size.model(row)},
        "data": dict(texts),
        "train": {**how, "validate_every": max(1, updates // 5)},
    }
    for table, values in size.tables.items():
        tables[table] |= values
    return RunConfig.from_dict(tables, settings, source=row)


def run_row(row: str, out: Path, config: RunConfig, progress: bool) -> None:
    """Trains a row, or goes on with it, averages and scores; its result.json is written last."""
    run = RunFolder(out / "rows" / row)
    summary = train(config, run.path, resume=bool(run.steps()), progress=progress)
    assert summary.checkpoint is not None
    average_checkpoints(run.path, min(5, len(run.steps())))
    last, averaged = score(summary.checkpoint, config), score(find_checkpoint(run.path), config)
    (run.path / "valid.translated").write_text("".join(f"{line}\n" for line in last.pop("translated")), "utf-8")
    del averaged["translated"]
    curve = [{key: e[key] for key in ("step", "perplexity")} for e in run.metrics() if e["kind"] == "valid"]
    tokens, seconds = summary.tokens, round(summary.seconds, 1)
    result = {"row": row, "steps": summary.step, "tokens": tokens, "seconds": seconds, **last, "averaged": averaged}
    write_json(run.path / "result.json", result | {"curve": curve})
    for old in run.steps()[:-1]:  # twenty rows with the moments of five checkpoints each fill a disk
        shutil.rmtree(old)


def score(checkpoint: Path, config: RunConfig) -> dict[str, Any]:
    """Parameters, perplexity a piece and BLEU of a checkpoint on the validation text."""
    model, tokenizer, _ = load_model(checkpoint)
    data, files = config.data, TASK.texts(config.data)["valid"]
    corpus = TASK.prepare(files, tokenizer, Path(data.prepared) / "valid", data.max_length)
    measured = Validation(TASK, model, tokenizer, corpus, config).measure(Signals())
    assert measured is not None
    source, target = ([*chain.from_iterable(read_lines(file))] for file in files)
    found = [best[0][0] for best in translate_lines(model, tokenizer, source, **asdict(config.search))]
    scored = bleu(found, target, BLEUS[BLEU])
    return {
        "parameters": model.n_parameters(), "perplexity": measured["perplexity"], "bleu": scored["score"],
        "signature": scored["signature"], "translated": found,
    }  # fmt: skip


def results(out: Path) -> dict[str, dict[str, Any]]:
    """The figures of all rows that are done."""
    files = {row: out / "rows" / row / "result.json" for row in ROWS}
    return {row: found for row, file in files.items() if (found := read_sealed(file))}
