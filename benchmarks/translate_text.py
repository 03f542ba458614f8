"""Time complete commands that translate a text: ours, CTranslate2 and transformers, each from start to exit.

    python -m benchmarks.translate_text runs/multi30k test2016.en --engine ours --engine ctranslate2 --repeats 5

The run is exported by `npx-transformer export`. Every command reads the text, loads model and tokenizer, translates
with the same beam and batch size, and writes the translations. The commands run in turn. All engines search in the same
way: with the length penalty |Y|^alpha, with finished hypotheses only among the `beam` most probable continuations, and
until `beam` hypotheses have finished. Lines that differ from ours are counted. Processor time is user plus system time.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import turns

ENGINES = ("ours", "ctranslate2", "ctranslate2-int8", "transformers")
LENGTH = 256  # maximum number of tokens that CTranslate2 and transformers generate


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("run", type=Path)
    p.add_argument("text", type=Path)
    p.add_argument("--engine", action="append", choices=ENGINES, help="may be repeated")
    for name, default in {"beam": 4, "batch-tokens": 4096, "repeats": 5, "threads": 1}.items():
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--alpha", type=float, default=0.6, help="length penalty")
    p.add_argument("--json", action="store_true", help="print a JSON list last")
    p.add_argument("--worker", nargs=2, metavar=("MODEL", "OUTPUT"), help=argparse.SUPPRESS)
    return p.parse_args()


def main() -> None:
    a = arguments()
    engines = a.engine or ["ours"]
    if a.worker:
        worker = transformers if engines[0] == "transformers" else ctranslate2
        return worker(a, Path(a.worker[0]), Path(a.worker[1]))
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(a, engines, Path(folder))
    print(
        f"{a.text.name}, beam {a.beam}, batches of {a.batch_tokens} tokens, {a.threads} threads; "
        f"medians of {a.repeats} commands in turn (fastest in parentheses)"
    )
    for row in rows:
        ratio = row["cpu_seconds"] / rows[0]["cpu_seconds"]
        print(
            f"{row['engine']:16} processor {row['cpu_seconds']:7.2f} s ({row['cpu_fastest']:.2f})  {ratio:5.2f} x"
            f"   wall {row['seconds']:7.2f} s ({row['fastest']:.2f})   {row['differing_lines']} lines differ"
        )
    if a.json:
        print(json.dumps(rows))


def compare(a: argparse.Namespace, engines: list[str], folder: Path) -> list[dict[str, float | int | str]]:
    """Run the commands of all engines in turn, after one warmup run of each."""
    run = folder / "run"
    copy_run(a, run)
    environment = turns.environment(a.threads) | {"PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    commands = {engine: command(a, engine, folder, environment) for engine in engines}
    times: dict[str, list[tuple[float, float]]] = {engine: [] for engine in engines}
    for repeat in range(1 + a.repeats):
        for engine in engines:
            before = processor_seconds()
            started = time.perf_counter()
            subprocess.run(commands[engine], env=environment, check=True)
            if repeat:
                times[engine].append((processor_seconds() - before, time.perf_counter() - started))
    expected = (folder / engines[0]).read_text(encoding="utf-8").splitlines()
    rows: list[dict[str, float | int | str]] = []
    for engine in engines:
        lines = (folder / engine).read_text(encoding="utf-8").splitlines()
        assert len(lines) == len(expected), (len(lines), len(expected))
        cpu, wall = zip(*times[engine], strict=True)
        row: dict[str, float | int | str] = {"engine": engine, "cpu_seconds": round(statistics.median(cpu), 3)}
        row |= {"cpu_fastest": round(min(cpu), 3), "seconds": round(statistics.median(wall), 3)}
        row |= {"fastest": round(min(wall), 3)}
        rows.append(row | {"differing_lines": sum(x != y for x, y in zip(lines, expected, strict=True))})
    return rows


def copy_run(a: argparse.Namespace, folder: Path) -> None:
    """Copy the run without its data, configured to search like the other engines."""
    from train.run.config import RunConfig

    ignored = shutil.ignore_patterns("data", "optimizer.safetensors")
    shutil.copytree(a.run, folder, ignore=ignored)
    config = RunConfig.load(folder / "config.toml")
    search = {
        "beam_size": a.beam,
        "length_penalty": a.alpha,
        "length_penalty_type": "length",
        "candidate_rule": "fairseq",
        "batch_tokens": a.batch_tokens,
    }
    config = dataclasses.replace(config, search=dataclasses.replace(config.search, **search))
    (folder / "config.toml").write_text(config.dump(), encoding="utf-8")


def command(a: argparse.Namespace, engine: str, folder: Path, environment: dict[str, str]) -> list[str]:
    """Return the command of an engine, which writes to the file `engine` of the folder; export the run for it."""
    ours = [sys.executable, "-m", "train"]
    if engine == "ours":
        files = ["--model", str(folder / "run"), "--input", str(a.text), "--output", str(folder / engine)]
        return [*ours, "translate", "--quiet", *files]
    target = "huggingface" if engine == "transformers" else "ctranslate2"
    model = folder / f"model-{engine}"
    options = ["--to", target, "--dtype", "int8" if engine.endswith("int8") else "float32", "--out", str(model)]
    subprocess.run([*ours, "export", str(folder / "run"), *options], env=environment, check=True)
    settings = [
        f"--{name.replace('_', '-')}={getattr(a, name)}" for name in ("beam", "batch_tokens", "threads", "alpha")
    ]
    worker = ["--engine", engine, *settings, "--worker", str(model), str(folder / engine)]
    return [sys.executable, "-m", "benchmarks.translate_text", str(a.run), str(a.text), *worker]


def processor_seconds() -> float:
    """Return the user and system time of all commands that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def ctranslate2(a: argparse.Namespace, model: Path, output: Path) -> None:
    """Translate with CTranslate2 and the exported tokenizer."""
    import ctranslate2 as ct2

    translator = ct2.Translator(str(model), inter_threads=1, intra_threads=a.threads, compute_type="default")
    lines = a.text.read_text(encoding="utf-8").splitlines()
    settings = model / "tokenizer"
    if (settings / "source.spm").exists():
        import sentencepiece

        source, target = (
            sentencepiece.SentencePieceProcessor(model_file=str(settings / f"{side}.spm"))
            for side in ("source", "target")
        )
        subwords = [[*tokens, "</s>"] for tokens in source.encode(lines, out_type=str)]
        decode = target.decode
    else:
        from tokenizers import Tokenizer

        file = settings / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(file if file.exists() else model / "tokenizer.json"))
        subwords = [encoding.tokens for encoding in tokenizer.encode_batch(lines)]

        def decode(tokens: list[str]) -> str:
            return tokenizer.decode([tokenizer.token_to_id(token) for token in tokens])

    results = translator.translate_batch(
        subwords, beam_size=a.beam, length_penalty=a.alpha, max_batch_size=a.batch_tokens, batch_type="tokens",
        max_decoding_length=LENGTH,
    )  # fmt: skip
    output.write_text("".join(f"{decode(result.hypotheses[0])}\n" for result in results), encoding="utf-8")


def transformers(a: argparse.Namespace, model: Path, output: Path) -> None:
    """Translate with MarianMT of transformers, in batches of sentences of similar length."""
    import torch
    from transformers import AutoTokenizer, MarianMTModel

    torch.set_num_threads(a.threads)
    tokenizer = AutoTokenizer.from_pretrained(model)
    network = MarianMTModel.from_pretrained(model).eval()
    lines = a.text.read_text(encoding="utf-8").splitlines()
    lengths = [len(ids) for ids in tokenizer(lines)["input_ids"]]
    translations = [""] * len(lines)
    batch = []
    order = sorted(range(len(lines)), key=lambda i: -lengths[i])
    for position, i in enumerate(order):
        batch.append(i)
        if position + 1 < len(order) and (len(batch) + 1) * lengths[batch[0]] <= a.batch_tokens:
            continue
        source = tokenizer([lines[j] for j in batch], return_tensors="pt", padding=True)
        with torch.inference_mode():
            ids = network.generate(
                **source, num_beams=a.beam, length_penalty=a.alpha, early_stopping=True, do_sample=False,
                max_new_tokens=LENGTH,
            )  # fmt: skip
        for j, text in zip(batch, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
            translations[j] = text
        batch = []
    output.write_text("".join(f"{text}\n" for text in translations), encoding="utf-8")


if __name__ == "__main__":
    main()
