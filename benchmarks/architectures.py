"""Train the Transformer and encoder-decoders with other layers, with equal parameter counts and training times.

    python -m benchmarks.architectures --data data/multi30k --out runs/architectures --minutes 20

The base is configs/multi30k-tiny.toml. Only the widths are tuned: the parameter count of every model is as close to
this Transformer's as the step size of the width allows. Each model is scored with the average of its last checkpoints.
A model with a result.json in its folder is finished; the same command continues with the others.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from train.errors import UserError
from train.experiments.folder import open_table_folder, write_table
from train.json_files import read_sealed, write_sealed
from train.learn.training import train
from train.metrics.bleu import BLEUS, bleu
from train.run.average import average_checkpoints
from train.run.checkpoint import find_checkpoint, load_model
from train.run.config import RunConfig
from train.run.folder import RunFolder
from train.tasks import TASKS
from train.tasks.translation import best_translations
from train.text.lines import read_all_lines

BASE = Path(__file__).parents[1] / "configs" / "multi30k-tiny.toml"
MODELS: dict[str, dict[str, Any]] = {  # keys of [model] that differ from the base
    "encoder_decoder": {},
    "rnn": {"n_layers": 3, "d_model": 144},
    "convs2s": {"d_model": 140},
    "bytenet": {"n_layers": 10, "d_model": 164},
}
HEADINGS = "architecture", "parameters", "updates", "tokens/s", "perplexity", "BLEU"


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path, required=True, help="folder with train, val and test2016, .en and .de")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--minutes", type=float, default=20, help="minutes of training for each model")
    p.add_argument("--model", action="append", choices=MODELS, help="may be repeated; default: all")
    return p.parse_args()


def main() -> None:
    a = arguments()
    open_table_folder(a.out, {"minutes": a.minutes})
    for name in a.model or MODELS:
        if name not in results(a.out):
            write_sealed(a.out / name / "result.json", run(name, a))
    rows = results(a.out)
    lines = [" | ".join(HEADINGS), "|".join(["---"] * len(HEADINGS))]
    for name, r in rows.items():
        cells = f"{r['parameters']:,}", f"{r['steps']:,}", f"{r['tokens_per_second']:,.0f}"
        perplexity = f"{r['perplexity']:.2f}" if r["perplexity"] else "none"
        lines.append(" | ".join([name, *cells, perplexity, f"{r['bleu']:.2f}"]))
    lines = [f"| {line} |" for line in lines]
    minutes = f"{a.minutes:g} minutes of training each; perplexity on the validation text, BLEU on test2016."
    write_table(a.out, "architectures", rows, ["# Architectures with equal parameters", "", minutes, "", *lines])
    print("\n".join(lines))


def results(out: Path) -> dict[str, Any]:
    """Return the results of all finished models."""
    return {name: result for name in MODELS if (result := read_sealed(out / name / "result.json"))}


def run(name: str, a: argparse.Namespace) -> dict[str, Any]:
    """Train and score a model, or continue its training, and return its result."""
    texts = {"train": "train", "valid": "val"}
    overrides = [f"data.{part}_{side}={json.dumps(str(a.data / f'{file}.{language}'))}"
                for part, file in texts.items() for side, language in (("src", "en"), ("tgt", "de"))]  # fmt: skip
    overrides += [f"model.{key}={json.dumps(value)}" for key, value in ({"architecture": name} | MODELS[name]).items()]
    overrides += [
        f"data.prepared={json.dumps(str(a.out / 'data'))}",
        "train.max_steps=1000000",
        "train.patience=0",
        "train.validate_every=250",
    ]
    tokenizer = a.out / "tokenizer.json"
    if not tokenizer.is_file():  # the time to train it is not counted
        data = RunConfig.load(BASE, overrides).data
        TASKS["translation"].train_tokenizer(data, TASKS["translation"].text_files(data)["train"]).save(tokenizer)
    overrides.append(f"data.tokenizer={json.dumps(str(tokenizer))}")
    folder = RunFolder(a.out / name)
    summary = train(
        RunConfig.load(BASE, overrides), folder.path, resume=bool(folder.step_paths()), max_hours=a.minutes / 60
    )
    average_checkpoints(folder.path, min(5, len(folder.step_paths())))
    model, model_tokenizer, config = load_model(find_checkpoint(folder.path))
    source, reference = (read_all_lines(a.data / f"test2016.{language}") for language in ("en", "de"))
    search = {
        key: getattr(config.search, key)
        for key in ("beam_size", "length_penalty", "length_penalty_type", "max_extra_tokens")
    }
    score = bleu(best_translations(model, model_tokenizer, source, **search), reference, BLEUS["bleu_tok"])
    curve = [{key: e[key] for key in ("step", "perplexity")} for e in folder.metrics() if e["kind"] == "valid"]
    return {
        "parameters": model.n_parameters(), "steps": summary.step,
        "tokens_per_second": summary.tokens / summary.seconds,
        "perplexity": curve[-1]["perplexity"] if curve else None, "bleu": score["score"],
        "signature": score["signature"], "curve": curve,
    }  # fmt: skip


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"architectures: {error}") from None
