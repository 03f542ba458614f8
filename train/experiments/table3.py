"""Table 3 of the paper, variations of the base model: each row is trained, averaged and scored.

    OUT/settings.json          settings of all rows: scale, steps, configuration changes, SHA-256 of the text
       /tokenizer.json, data/  tokenizer and prepared text, shared by all rows
       /rows/NAME/             run folder of a row; its second training run is in rows/NAME-seed2/, and so on
       /rows/NAME/result.json  the results of this training run; a run that has this file is finished
       /table3.{md,json,png}   all finished rows and the paper's, rewritten after each training run

An interrupted row continues from its newest checkpoint. A row is scored with its last weights, as in the paper (section
6.2: "no checkpoint averaging"). The average of its last checkpoints is scored too.
"""

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from models import TransformerConfig
from train.errors import UserError, check_choice
from train.experiments.comparison import mean_result, write_comparison
from train.experiments.folder import open_table_folder
from train.experiments.paper import TABLE3
from train.experiments.processes import run_parallel
from train.files import digest
from train.json_files import read_sealed, write_sealed
from train.learn.signals import Signals
from train.learn.training import prepare_corpora, train
from train.learn.validation import Validator
from train.metrics.bleu import BLEUS, bleu
from train.progress import Display
from train.run.average import average_checkpoints
from train.run.checkpoint import find_checkpoint, load_model
from train.run.config import RunConfig, preset_values
from train.run.folder import RunFolder
from train.run.toml_text import to_toml
from train.tasks import TASKS
from train.tasks.translation import best_translations
from train.text.lines import read_all_lines

TASK = TASKS["translation"]
BLEU = "bleu_13a"
RESULT = "result.json"


@dataclass(frozen=True)
class TrainingScale:
    """Model size and training length, relative to the paper's."""

    width_divisor: int  # divisor of d_model, d_ff, d_k and d_v
    depth_divisor: int  # divisor of the number of layers
    steps: int  # updates of every row except big, which has three times as many, as in the paper
    checkpoints: int  # number written during these updates; the last 5 are kept and averaged
    seeds: int = 1  # training runs per row
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # other configuration keys

    def model(self, row: str) -> dict[str, Any]:
        """Return the [model] table of a row."""
        if self.width_divisor == self.depth_divisor == 1:
            return {}
        c = TransformerConfig.preset(row, vocab_size=37000)
        sizes = {"d_model": c.d_model, "d_ff": c.d_ff, "d_k": c.key_size, "d_v": c.value_size}
        narrowed = {name: size // self.width_divisor for name, size in sizes.items()}
        return narrowed | {"n_layers": c.n_layers // self.depth_divisor}


SCALES = {
    "paper": TrainingScale(1, 1, 100_000, 66),
    "small": TrainingScale(
        4, 2, 8_000, 40, 2, {"data": {"vocab_size": 4000}, "train": {"batch_tokens": 2048, "warmup_steps": 1000}}
    ),
    "tiny": TrainingScale(
        8, 2, 2_600, 25, 1, {"data": {"vocab_size": 4000}, "train": {"batch_tokens": 1024, "warmup_steps": 400}}
    ),
}


def run_table3(
    out: Path,
    texts: Mapping[str, str],
    scale: str = "paper",
    rows: Iterable[str] = (),
    steps: int | None = None,
    overrides: Sequence[str] = (),
    progress: bool = True,
    seeds: int | None = None,
    n_jobs: int = 1,
) -> dict[str, Any]:
    """Train and score the unfinished rows in the folder `out` and return the comparison with the paper.

    Args:
        out: folder of the table.
        texts: the [data] keys train_src, train_tgt, valid_src and valid_tgt with their files; all are required.
        scale: key of SCALES.
        rows: rows to train; empty for all.
        steps: updates of base; default: the scale's.
        overrides: `table.key=value` strings for every row, as for --set.
        progress: whether to print the progress of each training run (with several jobs, only its start).
        seeds: training runs per row, with train.seed, train.seed + 1, ...; default: the scale's.
        n_jobs: number of parallel training runs, each in its own process.

    A training run that fails is reported, and the next call retries it; the others continue. Raises UserError for
    invalid arguments, and at the end if a training run has failed.
    """
    rows = [*rows] or [*TABLE3]
    for row in rows:
        check_choice("--rows", row, TABLE3)
    steps = steps or SCALES[scale].steps
    common = row_config("base", scale, steps, texts, overrides).data
    files = TASK.text_files(common)
    if "valid" not in files:
        raise UserError("data.valid_src: missing validation text; try --valid-src FILE --valid-tgt FILE")
    open_table_folder(out, {
        "scale": scale, "steps": steps, "settings": [*overrides],
        "text": {name: digest(texts[name]) for name in sorted(texts)},
    })  # fmt: skip
    shared = [*overrides, f"data.prepared={to_toml(str(out / 'data'))}"]
    if common.tokenizer in TASK.tokenizers:
        tokenizer = out / "tokenizer.json"
        shared.append(f"data.tokenizer={to_toml(str(tokenizer))}")
        if not tokenizer.is_file():
            print("training the tokenizer of all rows", file=sys.stderr, flush=True)
            TASK.train_tokenizer(common, files["train"]).save(tokenizer)
    seeds = seeds or SCALES[scale].seeds
    names = [
        (row if repeat == 0 else f"{row}-seed{repeat + 1}", row, repeat) for repeat in range(seeds) for row in rows
    ]
    trainings = {}
    for number, (name, row, repeat) in enumerate(names, 1):
        config = row_config(row, scale, steps, texts, shared)
        config = replace(config, train=replace(config.train, seed=config.train.seed + repeat))
        run = RunFolder(out / "rows" / name)
        if not read_sealed(run.path / RESULT):
            trainings[name] = partial(
                run_row, row, run, config, progress and n_jobs == 1, f"row {number} of {len(names)}"
            )
    if trainings:  # prepare the text once, before several processes need it
        config = row_config("base", scale, steps, texts, shared)
        with Display(progress) as display:
            prepare_corpora(RunFolder(out), config, files, TASK.load_tokenizer(config.data.tokenizer), display)
    failed: dict[str, str] = {}
    divisors = SCALES[scale].width_divisor, SCALES[scale].depth_divisor
    for name, error in run_parallel(trainings, n_jobs):
        if error:
            failed[name] = error
            print(f"{name} failed: {error}", file=sys.stderr, flush=True)
        write_comparison(out, means(out), scale, divisors, failed)
    comparison = write_comparison(out, means(out), scale, divisors, failed)
    if failed:
        first = next(iter(failed))
        raise UserError(
            f"reproduce table3: {len(failed)} of {len(names)} rows failed: {', '.join(failed)} "
            f"({first}: {failed[first]}); run the same command again to train only these"
        )
    return comparison


def row_config(row: str, scale: str, steps: int, texts: Mapping[str, str], overrides: Sequence[str]) -> RunConfig:
    """Return the configuration of a row: its preset at the given scale, and the `overrides` (as for --set)."""
    training_scale = SCALES[scale]
    updates = preset_values(row)["train"]["max_steps"] * steps // 100_000
    tables: dict[str, dict[str, Any]] = {
        "model": {"preset": row, **training_scale.model(row)},
        "data": dict(texts),
        "train": {
            "max_steps": max(1, updates), "checkpoint_every": max(1, updates // training_scale.checkpoints),
            "keep_last": 5, "validate_score": False, "validate_every": max(1, updates // 10),
        },
    }  # fmt: skip
    for table, values in training_scale.tables.items():
        tables[table] |= values
    return RunConfig.from_dict(tables, overrides, source=row)


def run_row(row: str, run: RunFolder, config: RunConfig, progress: bool, title: str) -> None:
    """Train a row or continue its training, then average the checkpoints and score them; write result.json last."""
    print(f"{title}: {run.path.name}", file=sys.stderr, flush=True)
    summary = train(config, run.path, resume=bool(run.step_paths()), progress=progress)
    assert summary.checkpoint is not None
    n_averaged = min(5, len(run.step_paths()))
    average_checkpoints(run.path, n_averaged)
    last = score_checkpoint(summary.checkpoint, config)
    averaged = score_checkpoint(find_checkpoint(run.path), config) | {"checkpoints": n_averaged}
    (run.path / "valid.translated").write_text("".join(f"{line}\n" for line in last.pop("translated")), "utf-8")
    del averaged["translated"]
    curve = [{key: e[key] for key in ("step", "perplexity")} for e in run.metrics() if e["kind"] == "valid"]
    result = {"row": row, "steps": summary.step, "tokens": summary.tokens, "seconds": round(summary.seconds, 1)}
    write_sealed(run.path / RESULT, result | last | {"averaged": averaged, "curve": curve})
    for folder in run.step_paths()[:-1]:  # the checkpoints of twenty rows would fill the disk
        shutil.rmtree(folder)


def score_checkpoint(checkpoint: Path, config: RunConfig) -> dict[str, Any]:
    """Return the parameters, perplexity per token, BLEU and translations of a checkpoint on the validation text."""
    model, tokenizer, _ = load_model(checkpoint)
    data = config.data
    files = TASK.text_files(config.data)["valid"]
    corpus = TASK.prepare(files, tokenizer, Path(data.prepared) / "valid", data.max_length)
    validation = Validator(TASK, model, tokenizer, corpus, config).measure(Signals())
    assert validation is not None
    source, references = map(read_all_lines, files)
    translations = best_translations(model, tokenizer, source, **asdict(config.search))
    score = bleu(translations, references, BLEUS[BLEU])
    return {
        "parameters": model.n_parameters(), "perplexity": validation["perplexity"], "bleu": score["score"],
        "signature": score["signature"], "translated": translations,
    }  # fmt: skip


def results(out: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the results of all finished training runs of each row."""
    finished: dict[str, list[dict[str, Any]]] = {row: [] for row in TABLE3}
    for file in sorted(out.glob(f"rows/*/{RESULT}")):
        if result := read_sealed(file):
            finished[result["row"]].append(result)
    return {row: trainings for row, trainings in finished.items() if trainings}


def means(out: Path) -> dict[str, dict[str, Any]]:
    """Return the mean results of each row that has results."""
    return {row: mean_result(trainings) for row, trainings in results(out).items()}
