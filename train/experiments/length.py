"""Length extrapolation, a hypothesis of section 3.5 of the paper: train on up to 20 tokens, test on up to 200.

    OUT/settings.json         settings of all rows: updates and seed
       /rows/TASK-POSITIONS.json  the results of a row; a row that has this file is finished
       /length.{md,json,png}  all finished rows, rewritten after each row

Each row is a small Transformer with one positional encoding. It is trained on random sequences of one task with up to
20 tokens. Then greedy search decodes new sequences of each length. An interrupted row is trained again from the start.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import npx
from models import Transformer, TransformerConfig
from models.search import greedy_search
from train.errors import check_choice
from train.experiments.folder import open_table_folder, write_table
from train.experiments.plot import import_pyplot
from train.files import atomic_write
from train.json_files import read_sealed, write_sealed
from train.learn.optimizer import Adam
from train.progress import Display

POSITIONS = ("sinusoidal", "learned", "rotary", "alibi", "t5", "shaw")
MAX_TRAINED_LENGTH = 20
LENGTHS = (5, 10, 15, 20, 25, 30, 40, 60, 80, 100, 150, 200)  # source lengths in the test
N_TESTED = 50  # number of test sequences of each length
BATCH_SIZE = 64  # number of sequences per update
PEAK_LR = 2e-3
MASTERED = 90.0  # a length is mastered if at least this percentage of the outputs is exact
PAD, BOS, EOS, FIRST = 0, 1, 2, 3
LETTERS = 26
MODEL: dict[str, Any] = {"d_model": 64, "d_ff": 256, "n_heads": 4, "n_layers": 2, "dropout": 0.0}
MODEL |= {"norm_placement": "pre", "vocab_size": FIRST + 40, "max_positions": 2 * max(LENGTHS) + 2}

# In the task number-words, ten digits and a comma have the first ids, and 28 words the next ones.
COMMA, WORDS = FIRST + 10, FIRST + 11
Pair = tuple[list[int], list[int]]  # ids of source and target, without BOS and EOS


def copy(rng: np.random.Generator, length: int) -> Pair:
    """Return a random sequence of letters both as source and as target."""
    letters = rng.integers(FIRST, FIRST + LETTERS, length).tolist()
    return letters, letters


def reverse(rng: np.random.Generator, length: int) -> Pair:
    """Return a random sequence of letters and its reversal."""
    letters, _ = copy(rng, length)
    return letters, letters[::-1]


def number_words(rng: np.random.Generator, length: int) -> Pair:
    """Return `length` digits and commas, and the English words for the numbers: 42,7 -> forty two, seven.

    Each number has one or two digits.
    """
    source: list[int] = []
    target: list[int] = []
    while len(source) < length:
        if source:
            source.append(COMMA)
            target.append(COMMA)
        remaining = length - len(source)
        n_digits = remaining if remaining <= 2 else 1 if remaining == 3 else int(rng.integers(1, 3))
        number = int(rng.integers(0, 10) if n_digits == 1 else rng.integers(10, 100))
        source += [FIRST + int(digit) for digit in str(number)]
        target += spell(number)
    return source, target


def spell(number: int) -> list[int]:
    """Return the word ids of a number below 100: one word up to nineteen, otherwise the tens and any nonzero units."""
    if number < 20:
        return [WORDS + number]
    tens, units = divmod(number, 10)
    return [WORDS + 18 + tens, *([WORDS + units] if units else [])]


SEQUENCE_TASKS: dict[str, Callable[[np.random.Generator, int], Pair]] = {
    "copy": copy, "reverse": reverse, "number-words": number_words,
}  # fmt: skip
ROWS = [f"{task}-{positions}" for task in SEQUENCE_TASKS for positions in POSITIONS]


def padded(rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Return rows of ids in one array, padded at the end."""
    ids = np.full((len(rows), max(map(len, rows))), PAD)
    for row, values in zip(ids, rows, strict=True):
        row[: len(values)] = values
    return ids


def batch(pairs: Sequence[Pair]) -> tuple[np.ndarray, np.ndarray]:
    """Return source ids (B, S), ending in EOS, and target ids (B, T+1), from BOS to EOS."""
    sources, targets = zip(*pairs, strict=True)
    return padded([[*source, EOS] for source in sources]), padded([[BOS, *target, EOS] for target in targets])


def run_length_extrapolation(
    out: Path, rows: Iterable[str] = (), steps: int = 1500, seed: int = 1, progress: bool = True
) -> dict[str, Any]:
    """Train and test the unfinished rows in the folder `out` and return the table.

    Args:
        out: folder of the table.
        rows: names from ROWS; empty for all.
        steps: updates of each row.
        seed: seed of the initialization and of all sequences.
        progress: whether to show the progress of each training run.

    Raises UserError for an unknown row, and for a folder that was started with other settings.
    """
    rows = [*rows] or ROWS
    for row in rows:
        check_choice("--rows", row, ROWS)
    open_table_folder(out, {"steps": steps, "settings": [f"seed={seed}"]})
    (out / "rows").mkdir(exist_ok=True)
    for row in rows:
        if row not in results(out):
            write_sealed(out / "rows" / f"{row}.json", run_row(row, steps, seed, progress))
            write_length(out, steps)
    return write_length(out, steps)


def results(out: Path) -> dict[str, dict[str, Any]]:
    """Return the results of all finished rows."""
    files = {row: out / "rows" / f"{row}.json" for row in ROWS}
    return {row: result for row, file in files.items() if (result := read_sealed(file))}


def run_row(row: str, steps: int, seed: int, progress: bool) -> dict[str, Any]:
    """Train a model and return its results by length."""
    task, positions = row.rsplit("-", 1)
    started = time.perf_counter()
    model = Transformer(TransformerConfig(**MODEL, positions=positions), seed)
    with Display(progress) as display, display.work(row, "updates", steps) as work:
        train_model(model, SEQUENCE_TASKS[task], steps, seed, lambda: work.advance(1))
    model.eval()
    rng = np.random.default_rng((seed, 2))
    lengths = {str(n): evaluate_model(model, [SEQUENCE_TASKS[task](rng, n) for _ in range(N_TESTED)]) for n in LENGTHS}
    seconds = round(time.perf_counter() - started, 1)
    parameters = model.n_parameters()
    return {"task": task, "positions": positions, "parameters": parameters, "seconds": seconds, "lengths": lengths}


def train_model(
    model: Transformer,
    task: Callable[[np.random.Generator, int], Pair],
    steps: int,
    seed: int,
    on_update: Callable[[], object],
) -> None:
    """Train on new sequences of random lengths; the learning rate rises for a tenth of the updates, then falls."""
    adam = Adam(model)
    rng = np.random.default_rng((seed, 1))
    warmup = max(1, steps // 10)
    for step in range(1, steps + 1):
        src, tgt = batch([task(rng, int(n)) for n in rng.integers(1, MAX_TRAINED_LENGTH + 1, BATCH_SIZE)])
        adam.flat.zero_grad()
        with npx.keyed(seed, step):
            model.loss(src, tgt, label_smoothing=0.0).backward()
        adam.step(PEAK_LR * min(step / warmup, (steps + 1 - step) / (steps + 1 - warmup)))
        on_update()


def evaluate_model(model: Transformer, pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the percentage of exact outputs and the percentage of target positions with the correct output token."""
    src, _ = batch(pairs)
    longest = max(len(target) - len(source) for source, target in pairs)
    outputs = [h.tokens for h in greedy_search(model, src, max_extra_tokens=max(0, longest) + 5)]
    targets = [target for _, target in pairs]
    exact = sum(output == target for output, target in zip(outputs, targets, strict=True))
    equal = [a == b for output, target in zip(outputs, targets, strict=True) for a, b in zip(output, target)]  # noqa: B905
    return {"exact": 100 * exact / len(pairs), "tokens": 100 * sum(equal) / sum(map(len, targets))}


# The table


def mastered_length(result: Mapping[str, Any]) -> int:
    """Return the longest tested length that is mastered together with all shorter ones, or 0."""
    longest = 0
    for n, scores in result["lengths"].items():
        if scores["exact"] < MASTERED:
            break
        longest = int(n)
    return longest


def describe_verdict(table: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a sentence that says whether the results confirm the paper's hypothesis about sinusoids."""
    reached = {
        result["task"]: mastered_length(result) for result in table.values() if result["positions"] == "sinusoidal"
    }
    if not reached:
        return "No row with sinusoidal positions is finished."
    beyond = [task for task, length in reached.items() if length > MAX_TRAINED_LENGTH]
    verdict = {0: "is not confirmed", len(reached): "is confirmed"}.get(len(beyond), "is partly confirmed")
    details = ", ".join(f"{length or 'no length'} for {task}" for task, length in reached.items())
    return (
        f"The hypothesis {verdict} here: with sinusoids, at least {MASTERED:.0f}% of the outputs are exact up to "
        f"length {details}."
    )


def write_length(out: Path, steps: int) -> dict[str, Any]:
    """Write length.json, length.md and, if matplotlib is installed, length.png; return the content of the JSON."""
    finished = results(out)
    table = {"steps": steps, "trained": MAX_TRAINED_LENGTH, "answer": describe_verdict(finished), "rows": finished}
    write_table(out, "length", table, markdown(table, draw(finished, out / "length.png")))
    return table


def markdown(table: Mapping[str, Any], has_picture: bool) -> Iterator[str]:
    """Yield the lines of the Markdown page."""
    yield from ("# Length extrapolation", "")
    yield f"Percentage of exact outputs by source length. The models are trained on lengths up to {table['trained']},"
    updates = f"{table['steps']:,} updates of {BATCH_SIZE} sequences"
    yield f"with {updates}, and tested on {N_TESTED} sequences of each length."
    yield f"`reach` is the greatest length up to which at least {MASTERED:.0f}% of the outputs are exact at every"
    yield "tested length."
    columns = ["task", "positions", "reach", *map(str, LENGTHS), "seconds"]
    yield from ("", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns))
    for result in table["rows"].values():
        exact = [f"{scores['exact']:.0f}" for scores in result["lengths"].values()]
        cells = [result["task"], result["positions"], str(mastered_length(result)), *exact, f"{result['seconds']:.0f}"]
        yield "| " + " | ".join(cells) + " |"
    yield ""
    yield 'The paper (section 3.5) chose sinusoids because they "may allow the model to extrapolate to sequence lengths'
    yield f'longer than the ones encountered during training". {table["answer"]}'
    if has_picture:
        yield from ("", "![exact outputs by length](length.png)")


def draw(table: Mapping[str, Mapping[str, Any]], path: Path) -> bool:
    """Draw the percentage of exact outputs by length, one panel per task; return False if matplotlib is missing."""
    pyplot = import_pyplot(path.name)
    if pyplot is None or not table:
        return False
    figure, axes = pyplot.subplots(
        1, len(SEQUENCE_TASKS), figsize=(4 * len(SEQUENCE_TASKS), 3.6), sharey=True, layout="constrained"
    )
    for axis, task in zip(axes, SEQUENCE_TASKS, strict=True):
        for result in table.values():
            if result["task"] == task:
                exact = [scores["exact"] for scores in result["lengths"].values()]
                axis.plot(LENGTHS, exact, marker=".", label=result["positions"])
        axis.axvline(MAX_TRAINED_LENGTH, color="grey", linewidth=0.8)
        axis.set(title=task, xlabel="source length", xscale="log")
        axis.set_xticks([5, 10, 20, 50, 100, 200], ["5", "10", "20", "50", "100", "200"])
        axis.minorticks_off()
    axes[0].set_ylabel("exact outputs, %")
    if handles := axes[0].get_legend_handles_labels()[0]:
        axes[0].legend(handles=handles)
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=120)
    pyplot.close(figure)
    return True
