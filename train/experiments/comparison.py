"""Table 3 as a page: the paper's figures beside ours, each row's difference to base, and what of the order shows."""

import importlib.util
import json
import math
import sys
from collections.abc import Iterator, Mapping
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from train.experiments.paper import FIGURES
from train.files import write_text

ROWS = {row: figures for row, figures in FIGURES.items() if row != "big-enfr"}

# What the paper concludes (section 6.2), as rows from the best to the worst.
CLAIMS = {
    "one head is worse than eight": ("base", "A-h1"),
    "too many heads are no better": ("base", "A-h32"),
    "smaller keys hurt": ("base", "B-dk32", "B-dk16"),
    "more layers are better": ("C-N8", "base", "C-N4", "C-N2"),
    "wider models are better": ("C-d1024", "base", "C-d256"),
    "wider feed-forward networks are better": ("C-ff4096", "base", "C-ff1024"),
    "the big model is better": ("big", "base"),
    "dropout helps": ("base", "D-drop0.0"),
    "label smoothing helps BLEU, and costs perplexity": ("base", "D-ls0.0"),
}
MEASURES = {"ppl": ("perplexity", -1), "bleu": ("BLEU", 1)}  # in the paper's figures: in ours, +1 where more is better
NOT_THE_PAPERS = """\
**These figures are not the paper's and cannot be set against them.** The models are smaller (widths by {width},
layers by {depth}, as many heads), so are the text and the training, and perplexity is of another vocabulary. What can
be compared is the order of the rows, as far as differences exceed what another seed would change, which one run of
each row does not tell."""

Results = Mapping[str, Mapping[str, Any]]


def compare(results: Results) -> dict[str, Any]:
    """{"rows": [{"row", "paper", "ours", "difference"}], "claims", "pairs"} of rows that are done."""
    rows = []
    for row, paper in ROWS.items():
        ours = results.get(row, {})
        entry: dict[str, Any] = {"row": row, "paper": paper, "ours": dict(ours)}
        entry["difference"] = {"paper": differences(paper, ROWS["base"])}
        if ours and "base" in results:
            entry["difference"]["ours"] = differences(figures(ours), figures(results["base"]))
        rows.append(entry)
    own = {row: figures(result) for row, result in results.items()}
    claims = [
        {"claim": claim, "rows": order, "paper": in_order(ROWS, order), "ours": in_order(own, order)}
        for claim, order in CLAIMS.items()
        if all(row in own for row in order)
    ]
    return {"rows": rows, "claims": claims, "pairs": {measure: pairs_alike(own, measure) for measure in MEASURES}}


def figures(result: Mapping[str, Any]) -> dict[str, float]:
    """A result in the paper's words."""
    return {"ppl": result["perplexity"], "bleu": result["bleu"], "params_millions": result["parameters"] / 1e6}


def differences(row: Mapping[str, float], base: Mapping[str, float]) -> dict[str, float]:
    """What a row has more than base: BLEU points, and the logarithm of perplexity (nats a piece)."""
    return {"bleu": row["bleu"] - base["bleu"], "nats": math.log(row["ppl"] / base["ppl"])}


def in_order(table: Mapping[str, Mapping[str, float]], order: tuple[str, ...]) -> dict[str, bool]:
    """For each measure whether each row of `order` is better than the next."""
    return {
        measure: all(sign * table[a][measure] > sign * table[b][measure] for a, b in pairwise(order))
        for measure, (_, sign) in MEASURES.items()
    }


def pairs_alike(own: Mapping[str, Mapping[str, float]], measure: str) -> dict[str, int]:
    """Of all pairs of rows that differ in the paper: how many there are, and how many differ the same way here."""
    pairs = [(a, b) for a, b in combinations(own, 2) if ROWS[a][measure] != ROWS[b][measure]]
    alike = sum((ROWS[a][measure] < ROWS[b][measure]) == (own[a][measure] < own[b][measure]) for a, b in pairs)
    return {"pairs": len(pairs), "alike": alike}


def write_comparison(
    out: Path, results: Results, scale: str, size: tuple[int, int], failed: Mapping[str, str]
) -> dict[str, Any]:
    """Writes table3.json, table3.md and, where matplotlib is there, table3.png; returns what the JSON holds."""
    comparison = {"table": 3, "scale": scale, **compare(results), "failed": dict(failed)}
    picture = draw(comparison, out / "table3.png")
    write_text(out / "table3.json", json.dumps(comparison, indent=1) + "\n")
    write_text(out / "table3.md", "\n".join(markdown(comparison, size, picture)) + "\n")
    return comparison


def markdown(comparison: Mapping[str, Any], size: tuple[int, int], picture: bool) -> Iterator[str]:
    """The lines of the page."""
    tiny = comparison["scale"] != "paper"
    yield from (f"# Table 3, scale {comparison['scale']}", "")
    if tiny:
        yield from (NOT_THE_PAPERS.format(width=size[0], depth=size[1]), "")
    yield from (
        "Perplexity a piece and BLEU on the validation text, beam search, last weights (the paper: newstest2013, no",
        "averaging); in brackets those of the average of the last 5 checkpoints. Parameters in millions. Differences",
        "to base: BLEU points, and nats a piece (the logarithm of the quotient of perplexities; less is better).",
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
            of = difference.get(side)
            cells += [f"{of['nats']:+.3f}", f"{of['bleu']:+.{digits}f}"] if of else ["-", "-"]
        yield "| " + " | ".join(cells) + " |"
    for row, reason in comparison["failed"].items():
        yield from ("", f"{row} failed: {reason}")
    yield from order(comparison)
    if picture:
        yield from ("", "![differences to base](table3.png)")
    signatures = {entry["ours"]["signature"] for entry in comparison["rows"] if entry["ours"]}
    yield from ("", *(f"BLEU: `{signature}`" for signature in sorted(signatures)))


def order(comparison: Mapping[str, Any]) -> Iterator[str]:
    """Lines on what of the paper's order shows."""
    if comparison["claims"]:
        yield from ("", "## What of the paper's order shows", "")
        yield from ("| the paper's order | best first | paper: ppl, BLEU | ours: ppl, BLEU |", "|---|---|---|---|")
    for claim in comparison["claims"]:
        cells = [claim["claim"], " > ".join(claim["rows"])]
        cells += [", ".join("yes" if claim[side][m] else "no" for m in MEASURES) for side in ("paper", "ours")]
        yield "| " + " | ".join(cells) + " |"
    for measure, (name, _) in MEASURES.items():
        if (of := comparison["pairs"][measure])["pairs"]:
            share = of["alike"] / of["pairs"]
            yield ""
            yield f"Of {of['pairs']} pairs of rows that differ in {name} in the paper, {of['alike']} ({share:.0%})"
            yield "differ the same way here; by chance it would be half."


def draw(comparison: Mapping[str, Any], path: Path) -> bool:
    """Draws each row's differences to base, the paper's and ours; False, and a note, where matplotlib is missing."""
    entries = [entry for entry in comparison["rows"] if entry["difference"].get("ours")]
    if not entries:
        return False
    if importlib.util.find_spec("matplotlib") is None:
        print('no picture: expected matplotlib; got none; try pip install "npx-transformer[draw]"', file=sys.stderr)
        return False
    import matplotlib

    matplotlib.use("Agg")  # draws without a screen
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 1.5 + 0.3 * len(entries)), sharey=True, layout="constrained")
    places = range(len(entries))
    labels = {"bleu": "BLEU more than base", "nats": "nats a piece more than base (less is better)"}
    for axis, (measure, label) in zip(axes, labels.items(), strict=True):
        for side, marker in (("paper", "o"), ("ours", "D")):
            axis.plot([entry["difference"][side][measure] for entry in entries], places, marker, label=side)
        axis.axvline(0, color="grey", linewidth=0.8)
        axis.grid(axis="y", linewidth=0.3)
        axis.set_xlabel(label)
    axes[0].set_yticks(places, [entry["row"] for entry in entries])
    axes[0].invert_yaxis()
    axes[0].legend()
    figure.suptitle(f"Table 3, scale {comparison['scale']}: differences to base")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True
