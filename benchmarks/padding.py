"""Compare our batches with fairseq's: the fraction of padding, and how often pairs share a batch again.

    python -m benchmarks.padding --pair train.en train.de --pair news.en news.de --json

For each pair of files a joint BPE vocabulary is trained (--vocab-size). `padding` is the fraction of padding among the
source and target positions of an epoch's batches; `batches` is their number; `repeats` is the probability that two
pairs that share a batch in one epoch also share one in the next epoch. All are means over --epochs epochs.

    version 2, 1   the current scheme and the scheme of version 0.2 (`train.text.batches.Batches`)
    fairseq        shuffle, sort stably by target length, then by source length, and cut greedily, as fairseq's
                   translation task and `batch_by_size` do (without its rounding of batch sizes to multiples of 8)
    random         cut in random order
"""

import argparse
import json
import tempfile
from collections.abc import Callable

import numpy as np

from train.text.batches import ORDER_VERSION, Batches
from train.text.corpus import IntArray, PairCorpus, prepare
from train.text.tokenizer import Tokenizer

Plan = list[IntArray]


def fairseq_order(corpus: PairCorpus, rng: np.random.Generator) -> IntArray:
    """Return the pairs in fairseq's order."""
    order = rng.permutation(len(corpus))
    order = order[np.argsort(corpus.tgt_lengths[order], kind="stable")]
    return order[np.argsort(corpus.src_lengths[order], kind="stable")]


def cut(corpus: PairCorpus, order: IntArray, batch_tokens: int) -> Plan:
    """Cut pairs in this order into the largest batches of at most `batch_tokens` tokens per side."""
    plan, start = [], 0
    lengths = np.maximum(corpus.src_lengths, corpus.tgt_lengths).astype(np.int64)[order]
    while start < len(order):
        window = np.maximum.accumulate(lengths[start : start + batch_tokens // int(lengths[start])])
        size = max(1, int(np.searchsorted(window * np.arange(1, len(window) + 1), batch_tokens, side="right")))
        plan.append(order[start : start + size])
        start += size
    return plan


def schemes(corpus: PairCorpus, batch_tokens: int) -> dict[str, Callable[[int], Plan]]:
    """Return, for each scheme, a function that maps an epoch to its batches."""

    def in_order(order: Callable[[np.random.Generator], IntArray]) -> Callable[[int], Plan]:
        return lambda epoch: cut(corpus, order(np.random.default_rng(epoch)), batch_tokens)

    ours = {f"version {n}": Batches(corpus, batch_tokens, 1, n).epoch_batches for n in range(ORDER_VERSION, 0, -1)}
    return ours | {
        "fairseq": in_order(lambda rng: fairseq_order(corpus, rng)),
        "random": in_order(lambda rng: rng.permutation(len(corpus))),
    }


def padding(corpus: PairCorpus, plan: Plan) -> float:
    """Return the fraction of padding among the source and target positions."""
    sides = corpus.src_lengths, corpus.tgt_lengths
    counts = [(int(side[i].sum()), len(i) * int(side[i].max())) for i in plan for side in sides]
    tokens, positions = map(sum, zip(*counts, strict=True))
    return 1 - tokens / positions


def repeats(first: Plan, second: Plan) -> float:
    """Return the probability that two pairs that share a batch in `first` also share one in `second`."""
    batch_of = np.empty((2, sum(map(len, first))), np.int64)
    for row, plan in zip(batch_of, (first, second), strict=True):
        for number, indices in enumerate(plan):
            row[indices] = number

    def couples(groups: IntArray) -> int:
        sizes = np.unique(groups, return_counts=True)[1]
        return int((sizes * (sizes - 1)).sum())

    return couples(batch_of[0] * len(second) + batch_of[1]) / max(1, couples(batch_of[0]))


def measure(corpus: PairCorpus, batch_tokens: int, epochs: int) -> dict[str, dict[str, float]]:
    """Return padding, number of batches and repeats of each scheme."""
    row = {}
    for name, batches_of in schemes(corpus, batch_tokens).items():
        plans = [batches_of(epoch) for epoch in range(epochs + 1)]
        row[name] = {
            "padding": float(np.mean([padding(corpus, plan) for plan in plans[:epochs]])),
            "batches": float(np.mean([len(plan) for plan in plans[:epochs]])),
            "repeats": float(np.mean([repeats(plans[i], plans[i + 1]) for i in range(epochs)])),
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", nargs=2, action="append", required=True, metavar=("SRC", "TGT"), help="parallel text")
    parser.add_argument("--batch-tokens", type=int, nargs="+", default=[512, 1024, 4096, 25_000])
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for paths in args.pair:
        with tempfile.TemporaryDirectory() as folder:
            src, tgt = paths
            corpus = prepare(src, tgt, Tokenizer.train(paths, vocab_size=args.vocab_size), folder)
            for batch_tokens in args.batch_tokens:
                row = measure(corpus, batch_tokens, args.epochs)
                rows.append({"text": paths[0], "pairs": len(corpus), "batch_tokens": batch_tokens, "schemes": row})
                figures = "  ".join(
                    f"{name} {100 * x['padding']:.2f}% {x['batches']:.1f} batches {100 * x['repeats']:.1f}% again"
                    for name, x in row.items()
                )
                print(f"{paths[0]} {batch_tokens:,}: {figures}", flush=True)
    if args.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
