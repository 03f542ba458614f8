"""The demo: English number words to German ones for 0 to 999,999, from making the text to a picture of the attention.

"three hundred and forty-two" becomes "dreihundertzweiundvierzig": German says the units before the tens, so a model
has to look ahead in the source, and the picture shows where it looks. Everything runs through the same calls as any
other training: `train`, `average_checkpoints`, `load_model`, `translate_lines`. Read it as an example of them.
"""

import importlib.util
import random
import time
import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from train.errors import UserError

LIMIT = 1_000_000
TELLING = (342, 21_965)  # the picture shows these two; they are never trained on
SHOWN = 5  # translations printed

CONFIG = """
[model]
preset = "tiny"
d_model = 128
d_ff = 512
n_heads = 4
n_layers = 2
dropout = 0.1

[data]
tokenizer = "bpe"
vocab_size = 350   # 4 special types, 256 bytes and 90 pieces: small enough that pieces are morphemes
max_length = 64

[train]
batch_tokens = 2500
max_steps = 800
warmup_steps = 200
lr_scale = 0.6
label_smoothing = 0.1
validate_every = 100
validate_bleu = false   # German writes a number as one word, and BLEU counts n-grams of words
checkpoint_every = 100
keep_last = 5
log_every = 25

[search]
beam = 4
alpha = 0.6
max_extra = 30
"""


def english(number: int) -> str:
    """342 -> "three hundred and forty-two"."""
    from num2words import num2words

    return num2words(number, lang="en")


def german(number: int) -> str:
    """342 -> "dreihundertzweiundvierzig"; 101,000 is "einhunderteintausend", where num2words has "...einstausend"."""
    from num2words import num2words

    return num2words(number, lang="de").replace("einstausend", "eintausend")


def draw(seed: int, n_train: int) -> dict[str, list[int]]:
    """Numbers to hold out (1,000), to validate with (500) and to train on, no number in two of them.

    Nearly all numbers below a million have six digits and few zeros. So that short and round ones are learned and
    tested too, a tenth of those held out are below 1,000, all the others below 1,000 are trained on, and every other
    number that is drawn to train on has each of its six digits zero with probability 1/2.
    """
    rng = random.Random(seed)
    small = [n for n in range(1000) if n not in TELLING]
    rng.shuffle(small)
    large = [n for n in rng.sample(range(1000, LIMIT), 1350 + len(TELLING)) if n not in TELLING]
    parts = {"test": small[:100] + large[:900], "valid": small[100:150] + large[900:1350]}
    taken, chosen = {*TELLING, *parts["test"], *parts["valid"]}, set(small[150:])
    while len(chosen) < n_train:
        round_one = int("".join(rng.choice("000000000123456789") for _ in range(6)))
        chosen |= {round_one, rng.randrange(LIMIT)} - taken
    parts["train"] = sorted(chosen)
    for numbers in parts.values():
        rng.shuffle(numbers)
    return parts


def run_demo(out: Path, seed: int = 1, n_train: int = 20_000, settings: Sequence[str] = ()) -> dict[str, float]:
    """Makes the text, trains, averages, translates 1,000 held-out numbers, scores and draws; all of it lands in `out`.

    `settings` (as for --set) go before CONFIG. Returns {"exact": percent of held-out numbers right to the letter,
    "bleu": of letters, "seconds": of the whole}.
    Raises UserError where num2words or matplotlib is missing, or where `out` is not new.
    """
    started = time.perf_counter()
    for name in ("num2words", "matplotlib"):
        if importlib.util.find_spec(name) is None:
            raise UserError(f'demo: expected the package {name}; got none; try pip install "npx-transformer[demo]"')
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: expected a new folder; got one that exists; try removing it, or another --out")
    from train.learn.training import train
    from train.metrics.bleu import Variant, bleu
    from train.run.checkpoint import average_checkpoints, load_model
    from train.run.config import RunConfig, to_toml
    from train.tasks.translation import translate_lines

    numbers = draw(seed, n_train)
    texts, changes = {}, [f"train.seed={seed}", *settings]
    out.mkdir(parents=True, exist_ok=True)
    for part in numbers:
        for side, language, words in (("src", "en", english), ("tgt", "de", german)):
            texts[part, language] = [words(number) for number in numbers[part]]
            write_lines(file := out / f"{part}.{language}", texts[part, language])
            if part != "test":
                changes.append(f"data.{part}_{side}={to_toml(str(file))}")
    print(f"{len(numbers['train']):,} pairs of number words to train on, 1,000 held out, in {out}")

    config = RunConfig.from_dict(tomllib.loads(CONFIG), changes, source="demo")
    train(config, out / "run")
    average_checkpoints(out / "run", config.train.keep_last)

    model, tokenizer, _ = load_model(out / "run")
    translated = translate_lines(model, tokenizer, texts["test", "en"], **asdict(config.search))
    found = [best[0][0] for best in translated]
    write_lines(out / "test.translated.de", found)
    exact = 100 * sum(a == b for a, b in zip(found, texts["test", "de"], strict=True)) / len(found)
    characters = Variant("", "char", False, False, "")  # a number is one word in German: of words there are no n-grams
    score = bleu(found, texts["test", "de"], characters)
    draw_attention(model, tokenizer, [(english(n), german(n)) for n in TELLING], out / "attention.png")

    print()
    for number, line in list(zip(numbers["test"], found, strict=True))[:SHOWN]:
        wrong = "" if line == german(number) else f"   (wrong: {german(number)})"
        print(f"{number:>7,}  {english(number)}\n{'':9}{line}{wrong}")
    seconds = time.perf_counter() - started
    print(f"\n{exact:.1f} % of 1,000 held-out numbers exactly right, {seconds:.0f} s in all")
    print(f"BLEU of their letters {score['score']:.2f} ({score['signature']})")
    print(f"{out / 'attention.png'} shows where the decoder looks: at the units before the tens")
    print(f"try: echo 'six hundred and seventy-eight' | npx-transformer translate --model {out / 'run'}")
    return {"exact": exact, "bleu": score["score"], "seconds": seconds}


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Writes text, a sentence a line."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


def draw_attention(model: Any, tokenizer: Any, pairs: Sequence[tuple[str, str]], path: Path) -> None:
    """Writes a PNG: for each (source, target) a heat map of the last layer's encoder-decoder attention, mean of heads.

    Row t, column s: the weight of source piece s while target piece t is predicted; a row sums to 1.
    """
    import matplotlib

    matplotlib.use("Agg")  # draws without a screen
    import matplotlib.pyplot as plt

    import npx
    from train.viewer.inspection import labels

    end, begin = model.config.eos_id, model.config.bos_id
    sides = [[tokenizer.encode(text) for text in pair] for pair in pairs]
    widths = [len(src) + 4 for src, _ in sides]
    height = 3 + 0.4 * max(len(tgt) for _, tgt in sides)  # inches
    figure, axes = plt.subplots(
        1, len(pairs), squeeze=False, width_ratios=widths, figsize=(0.45 * sum(widths), height), layout="constrained"
    )
    for axis, (src, tgt), (source, target) in zip(axes[0], sides, pairs, strict=True):
        maps = model.attention_maps(npx.asarray([[*src, end]]), npx.asarray([[begin, *tgt]]))
        image = axis.imshow(maps[-1][0].mean(0), cmap="Blues", vmin=0, vmax=1, aspect="auto")  # (T, S)
        axis.set_xticks(range(len(src) + 1), [*labels(tokenizer, src), "end"], rotation=60, ha="right")
        axis.set_yticks(range(len(tgt) + 1), [*labels(tokenizer, tgt), "end"])
        axis.set(xlabel="source piece", ylabel="target piece", title=f"{source}\n{target}")
        axis.title.set_fontsize("medium")
    figure.colorbar(image, ax=axes, label="attention weight, last layer, mean of the heads", shrink=0.8)
    figure.savefig(path, dpi=150)
    plt.close(figure)
