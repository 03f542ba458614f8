"""Compare Table 3 with the paper: results, differences from base, and which of the paper's claims are confirmed."""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from train.errors import plural
from train.experiments.folder import write_table
from train.experiments.paper import TABLE3
from train.experiments.plot import import_pyplot
from train.files import atomic_write

# The paper's conclusions (section 6.2), as rows from best to worst.
CLAIMS = {
    "one head is worse than eight": ("base", "A-h1"),
    "too many heads hurt": ("base", "A-h32"),
    "smaller keys hurt": ("base", "B-dk32", "B-dk16"),
    "more layers are better": ("C-N8", "base", "C-N4", "C-N2"),
    "wider models are better": ("C-d1024", "base", "C-d256"),
    "wider feed-forward networks are better": ("C-ff4096", "base", "C-ff1024"),
    "the big model is better": ("big", "base"),
    "dropout helps": ("base", "D-drop0.0"),
    "label smoothing improves BLEU but worsens perplexity": ("base", "D-ls0.0"),
}
# Maps a key to (name, +1 if higher is better and -1 if lower is better, key of the difference).
MEASURES = {"ppl": ("perplexity", -1, "nats"), "bleu": ("BLEU", 1, "bleu")}
ANSWERS = {True: "yes", False: "no", None: "unclear"}
NOT_COMPARABLE = """\
**These results are not comparable with the paper's.** The models are smaller (widths divided by {width}, layers by
{depth}, the same number of heads), they are trained on less text and for less time, and perplexity depends on the
vocabulary. Only the order of the rows can be compared, and only if the differences exceed the variation between
seeds{unknown}."""
VARIATION = """\
Each row is the mean over training runs with different seeds (for perplexity, the geometric mean), ± the standard
deviation. Pooled over the rows, the standard deviation is {bleu:.2f} BLEU and {nats:.3f} nats. A difference between
two rows is unclear if it is smaller than two standard errors: with two runs each, {two_bleu:.2f} BLEU or
{two_nats:.3f} nats."""

Results = Mapping[str, Mapping[str, Any]]


def mean_result(trainings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of a row's results with different seeds; for perplexities, the geometric mean.

    If there are several results, "trainings" holds them and "deviation" holds the standard deviations of "bleu" and of
    "nats", the log perplexity.
    """
    first, *others = trainings
    if not others:
        return dict(first)

    def mean(values: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        values = [*values]
        perplexity = statistics.geometric_mean([value["perplexity"] for value in values])
        return {"perplexity": perplexity, "bleu": statistics.fmean(value["bleu"] for value in values)}

    measures = {"nats": [math.log(r["perplexity"]) for r in trainings], "bleu": [r["bleu"] for r in trainings]}
    return {
        **first, **mean(trainings), "averaged": {**first["averaged"], **mean(r["averaged"] for r in trainings)},
        "seconds": statistics.fmean(r["seconds"] for r in trainings), "trainings": [*trainings],
        "deviation": {name: statistics.stdev(values) for name, values in measures.items()},
    }  # fmt: skip


def compare(results: Results) -> dict[str, Any]:
    """Compare the finished rows with the paper; return the rows, claims, pairs and deviation for table3.json.

    Args:
        results: a `mean_result` for each finished row.
    """
    rows = []
    for row, paper in TABLE3.items():
        ours = results.get(row, {})
        entry: dict[str, Any] = {"row": row, "paper": paper, "ours": dict(ours)}
        entry["difference"] = {"paper": differences(paper, TABLE3["base"])}
        if ours and "base" in results:
            entry["difference"]["ours"] = differences(paper_format(ours), paper_format(results["base"]))
        rows.append(entry)
    measured = {row: paper_format(result) for row, result in results.items()}
    pooled = pooled_deviation(results)
    claims = [
        {"claim": claim, "rows": order, "paper": is_ordered(TABLE3, order), "ours": is_ordered(measured, order, pooled)}
        for claim, order in CLAIMS.items()
        if all(row in measured for row in order)
    ]
    pairs = {measure: count_agreements(measured, measure, pooled) for measure in MEASURES}
    return {"rows": rows, "claims": claims, "pairs": pairs, "deviation": pooled}


def paper_format(result: Mapping[str, Any]) -> dict[str, float]:
    """Convert a result to the keys and units of TABLE3, and add the number of its training runs."""
    n_trainings = len(result.get("trainings", [result]))
    sizes = {"params_millions": result["parameters"] / 1e6, "trainings": n_trainings}
    return {"ppl": result["perplexity"], "bleu": result["bleu"], **sizes}


def differences(row: Mapping[str, float], base: Mapping[str, float]) -> dict[str, float]:
    """Return the differences from base in BLEU points and in log perplexity (nats per token)."""
    return {"bleu": row["bleu"] - base["bleu"], "nats": math.log(row["ppl"] / base["ppl"])}


def pooled_deviation(results: Results) -> dict[str, float] | None:
    """Return the standard deviations of "bleu" and "nats" between seeds, pooled over the rows; None if unknown."""
    if not (deviations := [result["deviation"] for result in results.values() if "deviation" in result]):
        return None
    return {name: math.sqrt(statistics.fmean(d[name] ** 2 for d in deviations)) for name in deviations[0]}


def is_better(
    a: Mapping[str, float], b: Mapping[str, float], measure: str, pooled: Mapping[str, float] | None
) -> bool | None:
    """Return whether row a is better than row b; None if they differ by less than two standard errors."""
    _, sign, unit = MEASURES[measure]
    advantage = sign * differences(a, b)[unit]
    errors = pooled[unit] * math.sqrt(1 / a["trainings"] + 1 / b["trainings"]) if pooled else 0
    return None if abs(advantage) < 2 * errors else advantage > 0


def is_ordered(
    table: Mapping[str, Mapping[str, float]], order: tuple[str, ...], pooled: Mapping[str, float] | None = None
) -> dict[str, bool | None]:
    """Return, for each measure, whether each row of `order` is better than the next; None if that is unclear."""
    answers = {m: [is_better(table[a], table[b], m, pooled) for a, b in pairwise(order)] for m in MEASURES}
    return {m: False if False in values else None if None in values else True for m, values in answers.items()}


def count_agreements(
    measured: Mapping[str, Mapping[str, float]], measure: str, pooled: Mapping[str, float] | None
) -> dict[str, int]:
    """Count the pairs of rows that differ in the paper, and how many of them have the same order or are ties here.

    If `pooled` is given, "clear" and "clear_alike" count only the pairs that differ by at least two standard errors.
    """
    pairs = [(a, b) for a, b in combinations(measured, 2) if TABLE3[a][measure] != TABLE3[b][measure]]
    different = [(a, b) for a, b in pairs if measured[a][measure] != measured[b][measure]]
    clear = [(a, b) for a, b in different if is_better(measured[a], measured[b], measure, pooled) is not None]

    def count_alike(row_pairs: list[tuple[str, str]]) -> int:
        return sum(
            (TABLE3[a][measure] < TABLE3[b][measure]) == (measured[a][measure] < measured[b][measure])
            for a, b in row_pairs
        )

    counts = {"pairs": len(pairs), "alike": count_alike(different), "ties": len(pairs) - len(different)}
    return counts | ({"clear": len(clear), "clear_alike": count_alike(clear)} if pooled else {})


def write_comparison(
    out: Path, results: Results, scale: str, divisors: tuple[int, int], failed: Mapping[str, str]
) -> dict[str, Any]:
    """Write table3.json, table3.md and, if matplotlib is installed, table3.png; return the content of the JSON."""
    comparison = {"table": 3, "scale": scale, **compare(results), "failed": dict(failed)}
    has_picture = draw(comparison, out / "table3.png")
    write_table(out, "table3", comparison, markdown(comparison, divisors, has_picture))
    return comparison


def markdown(comparison: Mapping[str, Any], divisors: tuple[int, int], has_picture: bool) -> Iterator[str]:
    """Yield the lines of the Markdown page."""
    pooled = comparison["deviation"]
    yield from (f"# Table 3, scale {comparison['scale']}", "")
    if comparison["scale"] != "paper":
        unknown = "" if pooled else ", which a single run of each row does not measure"
        yield from (NOT_COMPARABLE.format(width=divisors[0], depth=divisors[1], unknown=unknown), "")
    if pooled:
        two = {f"two_{name}": 2 * value for name, value in pooled.items()}  # 2 * sqrt(1/2 + 1/2)
        yield from (VARIATION.format(**pooled, **two), "")
    # Earlier versions did not record the number of averaged checkpoints.
    counts = {entry["ours"]["averaged"].get("checkpoints", 5) for entry in comparison["rows"] if entry["ours"]} or {5}
    *fewer, most = sorted(counts)
    n_averaged = " or ".join([*map(str, fewer), plural(most, "checkpoint")])
    yield from (
        "Perplexity per token and the BLEU of beam search are measured on the validation text (the paper:",
        "newstest2013), with the last weights as in the paper. Figures in brackets belong to the average of the last",
        f"{n_averaged}. Parameters are given in millions, differences from base in BLEU points and nats per token (log",
        "of the ratio of perplexities; lower is better).",
        "",
        "| row | paper: ppl | BLEU | params | ours: ppl | BLEU | params | updates | seconds "
        "| paper - base: nats | BLEU | ours - base: nats | BLEU |",
        "|" + "---|" * 13,
    )
    for entry in comparison["rows"]:
        paper, ours, difference = entry["paper"], entry["ours"], entry["difference"]
        cells = [entry["row"], f"{paper['ppl']:.2f}", f"{paper['bleu']:.1f}", f"{paper['params_millions']:g}"]
        if ours:
            averaged = ours["averaged"]
            millions = ours["parameters"] / 1e6
            ppl, bleu = f"{ours['perplexity']:.2f}", f"{ours['bleu']:.2f}"
            if deviation := ours.get("deviation"):
                ppl += f" ± {ours['perplexity'] * deviation['nats']:.2f}"  # because d exp(x) = exp(x) dx
                bleu += f" ± {deviation['bleu']:.2f}"
            cells += [f"{ppl} ({averaged['perplexity']:.2f})", f"{bleu} ({averaged['bleu']:.2f})", f"{millions:.2f}"]
            cells += [f"{ours['steps']:,}", f"{ours['seconds']:,.0f}"]
        else:
            cells += ["failed" if entry["row"] in comparison["failed"] else "-", *"----"]
        for side, digits in (("paper", 1), ("ours", 2)):
            delta = difference.get(side)
            cells += [f"{delta['nats']:+.3f}", f"{delta['bleu']:+.{digits}f}"] if delta else ["-", "-"]
        yield "| " + " | ".join(cells) + " |"
    for row, reason in comparison["failed"].items():
        yield from ("", f"{row} failed: {reason}")
    yield from claims_markdown(comparison)
    if has_picture:
        yield from ("", "![differences from base](table3.png)")
    signatures = {entry["ours"]["signature"] for entry in comparison["rows"] if entry["ours"]}
    yield from ("", *(f"BLEU: `{signature}`" for signature in sorted(signatures)))


def claims_markdown(comparison: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about the paper's claims and about how well the order of the rows agrees with the paper's."""
    if comparison["claims"]:
        yield from ("", "## The paper's claims", "")
        yield from ("| claim | best first | paper: ppl, BLEU | ours: ppl, BLEU |", "|---|---|---|---|")
    for claim in comparison["claims"]:
        cells = [claim["claim"], " > ".join(claim["rows"])]
        cells += [", ".join(ANSWERS[claim[side][m]] for m in MEASURES) for side in ("paper", "ours")]
        yield "| " + " | ".join(cells) + " |"
    for measure, (name, *_) in MEASURES.items():
        if (counts := comparison["pairs"][measure])["pairs"]:
            different = counts["pairs"] - counts["ties"]
            yield ""
            yield f"Of {counts['pairs']} pairs of rows with different {name} in the paper, {counts['ties']} are"
            share = f" ({counts['alike'] / different:.0%})" if different else ""
            yield f"equal here; of the other {different}, {counts['alike']}{share} have the same order."
            yield "In random order, half would."
            if comparison["deviation"]:
                yield f"Of the {counts['clear']} that differ clearly, {counts['clear_alike']} have the same order."


def draw(comparison: Mapping[str, Any], path: Path) -> bool:
    """Draw each row's differences from base, in the paper and here; return False if matplotlib is not installed."""
    entries = [entry for entry in comparison["rows"] if entry["difference"].get("ours")]
    plt = import_pyplot(path.name) if entries else None
    if plt is None:
        return False
    figure, axes = plt.subplots(1, 2, figsize=(10, 1.5 + 0.3 * len(entries)), sharey=True, layout="constrained")
    positions = range(len(entries))
    labels = {"bleu": "BLEU relative to base", "nats": "nats per token relative to base (lower is better)"}
    for axis, (measure, label) in zip(axes, labels.items(), strict=True):
        for side, marker in (("paper", "o"), ("ours", "D")):
            values = [entry["difference"][side][measure] for entry in entries]
            deviations = [entry[side].get("deviation", {}).get(measure, 0) for entry in entries]
            axis.errorbar(values, positions, xerr=deviations if any(deviations) else None, fmt=marker, label=side)
        axis.axvline(0, color="grey", linewidth=0.8)
        axis.grid(axis="y", linewidth=0.3)
        axis.set_xlabel(label)
    axes[0].set_yticks(positions, [entry["row"] for entry in entries])
    axes[0].invert_yaxis()
    axes[0].legend()
    figure.suptitle(f"Table 3, scale {comparison['scale']}: differences from base")
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=120)
    plt.close(figure)
    return True
