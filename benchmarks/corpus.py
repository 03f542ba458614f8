"""Benchmark `data` on a synthetic corpus of WMT14's size: seconds, memory and disk space, and their growth with size.

    python -m benchmarks.corpus --pairs 500000 --pairs 4500000 --limit-gib 4 --json

Sentences have 25 words on average (1 to 120). The words of both sides are sampled from 3,000,000 by Zipf's law in two
parts: 1 / rank up to rank 10,000, then rank^-1.4. The number of distinct words then grows as in German news: the
110,000 words of newstest2013 and 2014 contain 27,957 distinct words (26,743 here), and 112 million words would contain
about 1.9 million. For each size, the text is cleaned, a vocabulary of 37,000 tokens is trained and the text is encoded,
in a new process with limited memory.
"""

import argparse
import json
import math
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

WORDS, HEAD, STEEP = 3_000_000, 10_000, 1.4  # number of ranks, ranks with exponent 1, exponent of the other ranks
SYLLABLES = [c + v + d for c in "b c d f g h k l m n p r s t v w st tr".split() for v in "aeiou" for d in ["", *"nrsl"]]


def word(rank: int, ending: str) -> str:
    """Return the word of a rank, from 0; frequent words are shorter."""
    text = ending
    rank += 1
    while rank:
        rank, syllable = divmod(rank, len(SYLLABLES))
        text = SYLLABLES[syllable] + text
    return text


def write_side(path: Path, pairs: int, ending: str) -> None:
    """Write sentences, one per line; both sides have the same numbers of words."""
    rng = np.random.default_rng(1)
    words = [word(rank, ending) for rank in range(WORDS)]
    n_written = 0
    rank = np.arange(1.0, WORDS + 1)
    cumulative = np.cumsum(1 / np.maximum(rank, rank**STEEP / HEAD ** (STEEP - 1)))
    with path.open("w", encoding="utf-8") as file:
        while n_written < pairs:
            count = min(50_000, pairs - n_written)
            lengths = np.clip(rng.gamma(3, 8, count).astype(int) + 1, 1, 120)
            ranks = iter(np.searchsorted(cumulative, rng.random(lengths.sum()) * cumulative[-1]).tolist())
            file.writelines(" ".join([words[next(ranks)] for _ in range(n)]) + " .\n" for n in lengths.tolist())
            n_written += count


def measure(pairs: int, folder: Path, limit: float, tokenizer_lines: int) -> dict[str, float]:
    """Measure `npx-transformer data own` for one size."""
    files = {side: folder / f"{pairs}.{side}" for side in ("src", "tgt")}
    for side, file in files.items():
        if not file.exists():
            write_side(file, pairs, "en" if side == "tgt" else "")
    out = folder / f"out-{pairs}"
    shutil.rmtree(out, ignore_errors=True)
    code = "import sys; from train.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "data", "own", "--out", str(out), "--tokenizer-lines", str(tokenizer_lines)]
    command += [f"--train-{side}={file}" for side, file in files.items()]
    limit_bytes = int(limit * 2**30)
    started = time.perf_counter()
    usage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        command, check=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    )
    usage_after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "pairs": pairs,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": usage_after.ru_utime + usage_after.ru_stime - usage_before.ru_utime - usage_before.ru_stime,
        "peak_rss_mib": usage_after.ru_maxrss / 1024,  # the maximum over all sizes so far, so sizes must ascend
        "text_mib": sum(file.stat().st_size for file in files.values()) / 2**20,
        "disk_mib": sum(file.stat().st_size for file in out.rglob("*") if file.is_file()) / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--pairs", type=int, action="append", help="number of pairs; may be repeated, in ascending order"
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/corpus"), help="folder for texts and results")
    parser.add_argument("--limit-gib", type=float, default=4.0)
    parser.add_argument(
        "--tokenizer-lines", type=int, default=1_000_000, help="lines per side to train the tokenizer on; 0: all"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, float]] = []
    for pairs in args.pairs or [500_000, 4_500_000]:
        row = measure(pairs, args.folder, args.limit_gib, args.tokenizer_lines)
        if rows:
            growth = math.log(pairs / rows[-1]["pairs"])
            row["slope"] = math.log(row["cpu_seconds"] / rows[-1]["cpu_seconds"]) / growth  # 1 is linear
        rows.append(row)
        print("  ".join(f"{name} {value:,.2f}" for name, value in row.items()), flush=True)
    if args.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
