"""`data` on a made-up corpus of WMT14's size: seconds, memory and disk, and how they grow from one size to the next.

    python -m benchmarks.corpus --pairs 500000 --pairs 4500000 --limit-gib 4 --json

Sentences of 25 words on average (1 to 120), words of both sides drawn from 3,000,000 by Zipf's law in two parts:
1 / rank to rank 10,000, then rank^-1.4. So distinct words grow as in German news: of newstest2013 and 2014 the 110,000
words have 27,957 (here 26,743), and 112 million would have some 1.9 million. Each size is cleaned, gets a vocabulary of
37,000 and is prepared by a process of its own, which may not have more memory than the limit.
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

WORDS, HEAD, STEEP = 3_000_000, 10_000, 1.4  # ranks; of those that are as in Zipf's law; exponent of the others
SYLLABLES = [c + v + d for c in "b c d f g h k l m n p r s t v w st tr".split() for v in "aeiou" for d in ["", *"nrsl"]]


def word(rank: int, ending: str) -> str:
    """The word of a rank from 0: the commoner, the shorter."""
    text, rank = ending, rank + 1
    while rank:
        rank, syllable = divmod(rank, len(SYLLABLES))
        text = SYLLABLES[syllable] + text
    return text


def write_side(path: Path, pairs: int, ending: str) -> None:
    """Sentences, one a line; both sides have the same numbers of words."""
    rng, words, done = np.random.default_rng(1), [word(rank, ending) for rank in range(WORDS)], 0
    rank = np.arange(1.0, WORDS + 1)
    up_to = np.cumsum(1 / np.maximum(rank, rank**STEEP / HEAD ** (STEEP - 1)))
    with path.open("w", encoding="utf-8") as file:
        while done < pairs:
            count = min(50_000, pairs - done)
            lengths = np.clip(rng.gamma(3, 8, count).astype(int) + 1, 1, 120)
            ranks = iter(np.searchsorted(up_to, rng.random(lengths.sum()) * up_to[-1]).tolist())
            file.writelines(" ".join([words[next(ranks)] for _ in range(n)]) + " .\n" for n in lengths.tolist())
            done += count


def measure(pairs: int, folder: Path, limit: float, learn_from: int) -> dict[str, float]:
    """One size: what `npx-transformer data own` takes."""
    files = {side: folder / f"{pairs}.{side}" for side in ("src", "tgt")}
    for side, file in files.items():
        if not file.exists():
            write_side(file, pairs, "en" if side == "tgt" else "")
    out = folder / f"out-{pairs}"
    shutil.rmtree(out, ignore_errors=True)
    code = "import sys; from train.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "data", "own", "--out", str(out), "--learn-from", str(learn_from)]
    command += [f"--train-{side}={file}" for side, file in files.items()]
    most = int(limit * 2**30)
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (most, most)))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "pairs": pairs,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "peak_rss_mib": after.ru_maxrss / 1024,  # of the largest so far: give the sizes in rising order
        "text_mib": sum(file.stat().st_size for file in files.values()) / 2**20,
        "disk_mib": sum(file.stat().st_size for file in out.rglob("*") if file.is_file()) / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, action="append", help="may be repeated, in rising order")
    parser.add_argument("--folder", type=Path, default=Path("runs/corpus"), help="where texts and results lie")
    parser.add_argument("--limit-gib", type=float, default=4.0)
    parser.add_argument("--learn-from", type=int, default=1_000_000, help="lines a side for the vocabulary; 0: all")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, float]] = []
    for pairs in given.pairs or [500_000, 4_500_000]:
        row = measure(pairs, given.folder, given.limit_gib, given.learn_from)
        if rows:
            grown = math.log(pairs / rows[-1]["pairs"])
            row["slope"] = math.log(row["cpu_seconds"] / rows[-1]["cpu_seconds"]) / grown  # 1 is linear
        rows.append(row)
        print("  ".join(f"{name} {value:,.2f}" for name, value in row.items()), flush=True)
    if given.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
