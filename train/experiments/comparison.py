"""Compare Table 3 with the paper: results, differences from base, and which of the paper's claims are confirmed."""

import math
from collections.abc import Iterator, Mapping
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from train.experiments.folder import write_table
from train.experiments.paper import FIGURES as ROWS
from train.experiments.plot import import_pyplot

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
    "label smoothing helps BLEU, and costs perplexity": ("base", "D-ls0.0"),
}
MEASURES = {"ppl": ("perplexity", -1), "bleu": ("BLEU", 1)}  # maps a key to (name, +1 if higher is better)
NOT_COMPARABLE = """\
**These results are not comparable with the paper's.** The models are smaller (widths divided by {width}, layers by
{depth}, the same number of heads), so are the text and the training, and the perplexity is of another vocabulary. Only
the order of the rows can be compared, and only if the differences exceed the variation between seeds, which a single
run per row does not measure."""

Results = Mapping[str, Mapping[str, Any]]


def compare(results: Results) -> dict[str, Any]:
    """Return {"rows": [{"row", "paper", "ours", "difference"}], "claims", "pairs"} for the finished rows."""
    rows = []
    for row, paper in ROWS.items():
        ours = results.get(row, {})
        entry: dict[str, Any] = {"row": row, "paper": paper, "ours": dict(ours)}
        entry["difference"] = {"paper": differences(paper, ROWS["base"])}
        if ours and "base" in results:
            entry["difference"]["ours"] = differences(paper_format(ours), paper_format(results["base"]))
        rows.append(entry)
    measured = {row: paper_format(result) for row, result in results.items()}
    claims = [
        {"claim": claim, "rows": order, "paper": is_ordered(ROWS, order), "ours": is_ordered(measured, order)}
        for claim, order in CLAIMS.items()
        if all(row in measured for row in order)
    ]
    return {"rows": rows, "claims": claims, "pairs": {m: count_agreements(measured, m) for m in MEASURES}}


def paper_format(result: Mapping[str, Any]) -> dict[str, float]:
    """Return a result with the keys and units of ROWS."""
    return {"ppl": result["perplexity"], "bleu": result["bleu"], "params_millions": result["parameters"] / 1e6}


def differences(row: Mapping[str, float], base: Mapping[str, float]) -> dict[str, float]:
    """Return the differences from base in BLEU points and in log perplexity (nats per token)."""
    return {"bleu": row["bleu"] - base["bleu"], "nats": math.log(row["ppl"] / base["ppl"])}


def is_ordered(table: Mapping[str, Mapping[str, float]], order: tuple[str, ...]) -> dict[str, bool]:
    """Return, for each measure, whether each row of `order` is better than the next."""
    return {
        measure: all(sign * table[a][measure] > sign * table[b][measure] for a, b in pairwise(order))
        for measure, (_, sign) in MEASURES.items()
    }


def count_agreements(measured: Mapping[str, Mapping[str, float]], measure: str) -> dict[str, int]:
    """Count the pairs of rows that differ in the paper, and how many of them have the same order, or are equal,
    here."""
    pairs = [(a, b) for a, b in combinations(measured, 2) if ROWS[a][measure] != ROWS[b][measure]]
    different = [(a, b) for a, b in pairs if measured[a][measure] != measured[b][measure]]
    alike = sum(
        (ROWS[a][measure] < ROWS[b][measure]) == (measured[a][measure] < measured[b][measure]) for a, b in different
    )
    return {"pairs": len(pairs), "alike": alike, "ties": len(pairs) - len(different)}


def write_comparison(
    out: Path, results: Results, scale: str, size: tuple[int, int], failed: Mapping[str, str]
) -> dict[str, Any]:
    """Write table3.json, table3.md and, if matplotlib is installed, table3.png; return the content of the JSON."""
    comparison = {"table": 3, "scale": scale, **compare(results), "failed": dict(failed)}
    has_picture = draw(comparison, out / "table3.png")
    write_table(out, "table3", comparison, markdown(comparison, size, has_picture))
    return comparison


def markdown(comparison: Mapping[str, Any], size: tuple[int, int], has_picture: bool) -> Iterator[str]:
    """Yield the lines of the Markdown page."""
    yield from (f"# Table 3, scale {comparison['scale']}", "")
    if comparison["scale"] != "paper":
        yield from (NOT_COMPARABLE.format(width=size[0], depth=size[1]), "")
    yield from (
        "Perplexity per token and BLEU of beam search on the validation text (the paper: newstest2013), with the last",
        "weights as in the paper; in brackets with the average of the last 5 checkpoints. Parameters in millions.",
        "Differences from base in BLEU points and nats per token (log of the ratio of perplexities; lower is better).",
        "",
        "| row | paper: ppl | BLEU | params | ours: ppl | BLEU | params | updates | seconds "
        "| paper - base: nats | BLEU | ours - base: nats | BLEU |",
        "|" + "---|" * 13,
    )
    for entry in comparison["rows"]:
        paper, ours, difference = entry["paper"], entry["ours"], entry["difference"]
        cells = [entry["row"], f"{paper['ppl']:.2f}", f"{paper['bleu']:.1f}", f"{paper['params_millions']:g}"]
        if ours:
            averaged, millions = ours["averaged"], ours["parameters"] / 1e6
            cells += [f"{ours['perplexity']:.2f} ({averaged['perplexity']:.2f})"]
            cells += [f"{ours['bleu']:.2f} ({averaged['bleu']:.2f})", f"{millions:.2f}"]
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
    """Yield the lines on the paper's claims and on the agreement of the order of rows."""
    if comparison["claims"]:
        yield from ("", "## The paper's claims", "")
        yield from ("| claim | best first | paper: ppl, BLEU | ours: ppl, BLEU |", "|---|---|---|---|")
    for claim in comparison["claims"]:
        cells = [claim["claim"], " > ".join(claim["rows"])]
        cells += [", ".join("yes" if claim[side][m] else "no" for m in MEASURES) for side in ("paper", "ours")]
        yield "| " + " | ".join(cells) + " |"
    for measure, (name, _) in MEASURES.items():
        if (counts := comparison["pairs"][measure])["pairs"]:
            different = counts["pairs"] - counts["ties"]
            yield ""
            yield f"Of {counts['pairs']} pairs of rows with different {name} in the paper, {counts['ties']} are"
            share = f" ({counts['alike'] / different:.0%})" if different else ""
            yield f"equal here; of the other {different}, {counts['alike']}{share} have the same order."
            yield "In random order, half would."


def draw(comparison: Mapping[str, Any], path: Path) -> bool:
    """Draw each row's differences from base, the paper's and ours; return False if there is nothing to draw with."""
    entries = [entry for entry in comparison["rows"] if entry["difference"].get("ours")]
    plt = import_pyplot(path.name) if entries else None
    if plt is None:
        return False
    figure, axes = plt.subplots(1, 2, figsize=(10, 1.5 + 0.3 * len(entries)), sharey=True, layout="constrained")
    positions = range(len(entries))
    labels = {"bleu": "BLEU relative to base", "nats": "nats per token relative to base (lower is better)"}
    for axis, (measure, label) in zip(axes, labels.items(), strict=True):
        for side, marker in (("paper", "o"), ("ours", "D")):
            axis.plot([entry["difference"][side][measure] for entry in entries], positions, marker, label=side)
        axis.axvline(0, color="grey", linewidth=0.8)
        axis.grid(axis="y", linewidth=0.3)
        axis.set_xlabel(label)
    axes[0].set_yticks(positions, [entry["row"] for entry in entries])
    axes[0].invert_yaxis()
    axes[0].legend()
    figure.suptitle(f"Table 3, scale {comparison['scale']}: differences from base")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True
