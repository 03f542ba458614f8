"""The demo: a model that translates English number words from 0 to 999,999 into German.

"three hundred and forty-two" becomes "dreihundertzweiundvierzig": German names the units before the tens, so the
decoder has to look ahead in the source, and the attention picture shows where it looks. The code is also an example of
the library's main functions: `train`, `average_checkpoints`, `load_model` and `best_translations`.
"""

import importlib.util
import random
import time
import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from train.errors import UserError, pip_install, quote
from train.experiments.plot import import_pyplot
from train.files import atomic_write, describe_path, make_folder, write_text
from train.json_files import check_outside_run
from train.run.folder_swap import remove_partial

LIMIT = 1_000_000
PICTURED = (342, 21_965)  # numbers in the attention picture, excluded from training
N_PRINTED = 5

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
vocab_size = 350   # 4 special tokens, 256 bytes and 90 subwords: so few that subwords are morphemes
max_length = 64

[train]
batch_tokens = 2500
max_steps = 800
warmup_steps = 200
lr_scale = 0.6
label_smoothing = 0.1
validate_every = 100
validate_score = false   # a German number is one word, and BLEU counts n-grams of words
checkpoint_every = 100
keep_last = 5
log_every = 25

[search]
beam_size = 4
length_penalty = 0.6
max_extra_tokens = 30
"""


def english(number: int) -> str:
    """Return a number in English words: 342 -> "three hundred and forty-two"."""
    from num2words import num2words

    return num2words(number, lang="en")


def german(number: int) -> str:
    """Return a number in German words: 342 -> "dreihundertzweiundvierzig", with num2words' "einstausend" corrected."""
    from num2words import num2words

    return num2words(number, lang="de").replace("einstausend", "eintausend")


def sample_numbers(seed: int, n_train: int) -> dict[str, list[int]]:
    """Return disjoint lists of numbers for "test" (1,000), "valid" (500) and "train".

    Most numbers below a million have six digits and few zeros. A tenth of the test numbers are below 1,000. The other
    numbers below 1,000 are used for training, except 50 for validation. To include round numbers, half of the sampled
    training numbers have each digit replaced by zero with probability 1/2.
    """
    rng = random.Random(seed)
    small = [n for n in range(1000) if n not in PICTURED]
    rng.shuffle(small)
    large = [n for n in rng.sample(range(1000, LIMIT), 1350 + len(PICTURED)) if n not in PICTURED]
    parts = {"test": small[:100] + large[:900], "valid": small[100:150] + large[900:1350]}
    held_out = {*PICTURED, *parts["test"], *parts["valid"]}
    train = set(small[150:])
    while len(train) < n_train:
        round_number = int("".join(rng.choice("000000000123456789") for _ in range(6)))
        train |= {round_number, rng.randrange(LIMIT)} - held_out
    parts["train"] = sorted(train)
    for numbers in parts.values():
        rng.shuffle(numbers)
    return parts


def run_demo(out: Path, seed: int = 1, n_train: int = 20_000, overrides: Sequence[str] = ()) -> dict[str, float]:
    """Generate the text, train and average a model, translate and score 1,000 test numbers, and draw the attention.

    Args:
        out: new folder for all files.
        seed: seed of the numbers and of the training run.
        n_train: number of training pairs.
        overrides: `table.key=value` strings, as for --set, which override CONFIG.

    Returns {"exact": percentage of correct test numbers, "bleu": character-level BLEU, "seconds": total time}.
    Raises UserError if num2words or matplotlib is missing, or if `out` is not a new folder.
    """
    started = time.perf_counter()
    for name in ("num2words", "matplotlib"):
        if importlib.util.find_spec(name) is None:
            raise UserError(f"demo: {name} is not installed; try {pip_install('demo')}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: expected a new folder; got {describe_path(out)}; try another --out")
    check_outside_run(out)
    from train.learn.training import train
    from train.metrics.bleu import Variant, bleu
    from train.progress import Display
    from train.run.average import average_checkpoints
    from train.run.checkpoint import load_model
    from train.run.config import RunConfig
    from train.run.toml_text import to_toml
    from train.tasks.translation import best_translations

    numbers = sample_numbers(seed, n_train)
    texts = {}
    all_overrides = [f"train.seed={seed}", *overrides]
    make_folder(out)
    files = []
    try:
        for part in numbers:
            for side, language, words in (("src", "en", english), ("tgt", "de", german)):
                texts[part, language] = [words(number) for number in numbers[part]]
                files.append(file := out / f"{part}.{language}")
                write_lines(file, texts[part, language])
                if part != "test":
                    all_overrides.append(f"data.{part}_{side}={to_toml(str(file))}")
        print(f"{len(numbers['train']):,} pairs of number words for training and 1,000 for testing in {out}")
        config = RunConfig.from_dict(tomllib.loads(CONFIG), all_overrides, source="demo")
        train(config, out / "run")
    except BaseException:
        if not (out / "run").exists():  # the training has not started, so the same command can be repeated
            for file in files:
                remove_partial(str(file))
        raise
    average_checkpoints(out / "run", config.train.keep_last)

    model, tokenizer, _ = load_model(out / "run")
    sources = texts["test", "en"]
    with Display() as display, display.work("translated", "numbers", len(sources)) as work:
        hypotheses = best_translations(model, tokenizer, sources, on_progress=work.advance, **asdict(config.search))
    write_lines(out / "test.translated.de", hypotheses)
    references = texts["test", "de"]
    exact = 100 * sum(a == b for a, b in zip(hypotheses, references, strict=True)) / len(hypotheses)
    characters = Variant("", "char", False, False, "")  # counts characters, because each translation is one word
    score = bleu(hypotheses, references, characters)
    draw_attention(model, tokenizer, [(english(n), german(n)) for n in PICTURED], out / "attention.png")

    print()
    for number, line in list(zip(numbers["test"], hypotheses, strict=True))[:N_PRINTED]:
        wrong = "" if line == german(number) else f"   (wrong: {german(number)})"
        print(f"{number:>7,}  {english(number)}\n{'':9}{line}{wrong}")
    seconds = time.perf_counter() - started
    print(f"\n{exact:.1f}% of 1,000 test numbers translated correctly, {seconds:.0f} s in total")
    print(f"character-level BLEU {score['score']:.2f} ({score['signature']})")
    print(f"{out / 'attention.png'} shows the decoder's attention: it looks at the units before the tens")
    print(f"try: echo 'six hundred and seventy-eight' | npx-transformer translate --model {quote(out / 'run')}")
    return {"exact": exact, "bleu": score["score"], "seconds": seconds}


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Write text, one sentence per line."""
    write_text(path, "".join(f"{line}\n" for line in lines))


def draw_attention(model: Any, tokenizer: Any, pairs: Sequence[tuple[str, str]], path: Path) -> None:
    """Draw a heat map of the encoder-decoder attention for each (source, target): the mean of the last layer's heads.

    Row t, column s is the weight of source token s when target token t is predicted; a row sums to 1.
    """
    import npx
    from train.viewer.inspection import token_texts

    plt = import_pyplot(path.name)
    eos, bos = model.config.eos_id, model.config.bos_id
    sides = [[tokenizer.encode(text) for text in pair] for pair in pairs]
    widths = [len(src) + 4 for src, _ in sides]
    height = 3 + 0.4 * max(len(tgt) for _, tgt in sides)  # inches
    figure, axes = plt.subplots(
        1, len(pairs), squeeze=False, width_ratios=widths, figsize=(0.45 * sum(widths), height), layout="constrained"
    )
    for axis, (src, tgt), (source, target) in zip(axes[0], sides, pairs, strict=True):
        maps = model.attention_maps(npx.asarray([[*src, eos]]), npx.asarray([[bos, *tgt]]))
        image = axis.imshow(maps[-1][0].mean(0), cmap="Blues", vmin=0, vmax=1, aspect="auto")  # (T, S)
        axis.set_xticks(range(len(src) + 1), [*token_texts(tokenizer, src), "end"], rotation=60, ha="right")
        axis.set_yticks(range(len(tgt) + 1), [*token_texts(tokenizer, tgt), "end"])
        axis.set(xlabel="source token", ylabel="target token", title=f"{source}\n{target}")
        axis.title.set_fontsize("medium")
    figure.colorbar(image, ax=axes, label="attention weight, last layer, mean of heads", shrink=0.8)
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=150)
    plt.close(figure)
