"""docs/configuration.md, generated from the declarations that `--help`, config.toml and the checks use.

python -m tests.configuration_page --write
"""

import re
import sys
from collections.abc import Iterable
from dataclasses import Field
from pathlib import Path
from typing import Any

from models import PRESETS
from models.fields import keys_of, range_of
from npx.settings import SETTINGS
from train.run.config import default_of, preset_values
from train.run.keys import PRESET_DATA, PRESET_TRAIN, SECTIONS, VARIANTS
from train.run.toml_text import to_toml

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
INTRODUCTION = """# Configuration

<!-- Generated: python -m tests.configuration_page --write -->

A run is configured by a TOML file, by a preset, or by both. Later sources override earlier ones:

1. the default of each key,
2. the preset (`npx-transformer train base` or `model.preset = "base"`) and the variant (`model.variant`),
3. the keys in the configuration file (`npx-transformer train my.toml`),
4. options of the command: `--train-src F`, or `--set TABLE.KEY=VALUE` for any key.

```console
$ npx-transformer train base --set train.max_steps=500 --set model.dropout=0.2 --out runs/a ...
$ npx-transformer info base --config > my.toml    # a complete configuration with comments, to edit
```

The run folder stores the resulting configuration, with the same comments, as `config.toml`. An unknown key, a wrong
type or a value out of range is an error, and the message names the key.

With `--resume`, you may change only the keys marked ↻; any other difference from the configuration of the run is an
error. A text may have a new path, but its content must be unchanged. You may add a validation text to a run that has
none. `train.init` is marked too, but may change only before the first checkpoint.
"""
TABLES = {
    "model": "The architecture. A key that is left out takes the value of the preset; defaults are those of `base`.",
    "data": "The text and its tokenizer.",
    "train": "Optimization. The defaults are the paper's.",
    "search": "Beam search in `translate` and `parse`; the options of these commands override the keys. Validation uses"
    " greedy search.",
}
PRESETS_TEXT = """## Presets

A preset sets the keys of `[model]` that differ from `base`, and sometimes keys of `[train]` and `[data]`. `base` and
`big` are the models of the paper's Table 3. A name such as `C-d256` stands for another row of this table: the letter of
the group, then the setting that differs. `tiny` is not in the paper; it is small enough to train on a CPU.
`npx-transformer info NAME` prints the parameters, FLOPs and memory of a preset.
"""
VARIANTS_TEXT = """## Variants

`model.variant` selects the details in which the authors' program,
[tensor2tensor](https://github.com/tensorflow/tensor2tensor), differs from the text of the paper. A variant sets the
ordinary keys in the table below, and you can override each of them.

- `tensor2tensor-v1` is `transformer_base` of the first public commit (15 June 2017, in the week of the paper) and of
  the releases up to 1.1. Norm, dropout and learning rate are as in the paper.
- `tensor2tensor-v2` is `transformer_base_v2`, the default since 6 October 2017 (commit d5bdfcc8). It places the norm
  before each sub-layer, applies dropout in two more places, lengthens the warmup and doubles the learning rate.
- `tensor2tensor` is a mixture of the two. Use it only to load runs of earlier versions of this program.

Keys of `[model]` that the table does not list, such as `norm_eps` and `embedding_init`, have the same values in
all variants. A variant does not change the text, the tokenizer, the batch size or the shape of a preset. Three presets
of tensor2tensor's first version differ from the paper: `transformer_big_enfr` has d_ff 8192 and separate embeddings,
and both parsers have separate embeddings and five times the learning rate.
"""
VARIABLES_TEXT = """## Environment variables

An empty variable counts as unset. The packages read the variables in the first table, and the tests and the book read
those in the second.
"""
MEANINGS = {  # meaning of every variable; npx/settings.py has values and defaults of its variables
    "NPX_THREADS": "Threads of the CPU kernels and matmuls; `0` uses every core.",
    "NPX_KERNELS": "Kernel versions to run: the fastest (`fast`), the readable references (`reference`), both, compared"
    " with each other (`check`), or the CUDA sources without a GPU (`emulate`).",
    "NPX_TUNE": "`0`: `npx.configure_process()` leaves the process unchanged.",
    "NPX_CUBLASLT": "`1`: on a GPU, cuBLASLt adds bias and applies ReLU within matmuls; faster with CUDA graphs.",
    "NPX_KILL_LAUNCHER": "`1`: after an abort of several ranks, also terminate an `mpirun` that hangs.",
    "NPX_EMULATOR_ORDER": "Order in which the CUDA emulator runs the threads of a block.",
    "NPX_GPU_MEMORY": "Limit for GPU memory: GiB (`20`) or a percentage (`80%`).",
    "HYPOTHESIS_PROFILE": "Profile that sets the number of examples per property test.",
    "NPX_TEST_ENGINE": "Array engine of the tests. `strict` is a fake CuPy; `emulated` runs CUDA kernels on the CPU.",
    "NPX_DATA": "Folder of corpora for the tests that use real data. Without it, these tests are skipped.",
    "NPX_CHROMIUM": "Browser for the tests of the viewer.",
    "NPX_REQUIRE_BROWSER": "`1`: without a browser, the tests of the viewer fail instead of being skipped.",
    "BOOK_SEEDS": "Seeds with which the book's solutions are checked.",
    "BOOK_CHECK_ALL_GRADIENTS": "`1`: run each of the book's solutions on every input that the gradient checker"
    " derives.",
}
OTHERS = {  # variable outside npx/settings.py -> its values, its default
    "NPX_GPU_MEMORY": ("GiB or %", "all"),
    "HYPOTHESIS_PROFILE": ("`ci`, `dev`, `few`, `thorough`", "`ci`"),
    "NPX_TEST_ENGINE": ("`numpy`, `cupy`, `strict`, `emulated`", "`numpy`"),
    "NPX_DATA": ("folder", "`../shared/data`"),
    "NPX_CHROMIUM": ("path", "first on PATH"),
    "NPX_REQUIRE_BROWSER": ("`1`", "unset"),
    "BOOK_SEEDS": ("integer", "`20`"),
    "BOOK_CHECK_ALL_GRADIENTS": ("`1`", "unset"),
}


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; `head` has its column names, separated by |."""
    lines = [f"| {head} |", "|" + "---|" * (head.count("|") + 1)]
    lines += ["| " + " | ".join(escape(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def escape(cell: str) -> str:
    """Return a cell in which | separates no columns and <name>, which is an HTML tag, is code."""
    return re.sub(r"(?<!`)<[a-z/]+>(?!`)", r"`\g<0>`", cell).replace("|", "\\|")


def values(value_range: Any) -> str:
    """Return the values that a key or a variable takes, as a short Markdown text."""
    if choices := tuple(value_range.choices):
        return "preset, see below" if choices == tuple(PRESETS) else ", ".join(f"`{choice}`" for choice in choices)
    if value_range.kind is bool:
        return "`true`, `false`"
    if value_range.interval == "[0, 1]" and value_range.kind is int:
        return "`0`, `1`"
    name = {int: "integer", float: "number", str: "text"}[value_range.kind]
    return f"{name} in {value_range.interval}" if value_range.interval else name


def default(section: str, field: Field[Any]) -> str:
    """Return the default of a key; for a key of the model, that of `base`."""
    value = default_of(section, field)
    if value is None:
        none_means: str = field.metadata["none_means"]  # a key, a quotient of keys, or prose
        return f"`{none_means}`" if re.fullmatch(r"\w+( / \w+)?", none_means) else none_means
    return "empty" if value == "" else f"`{to_toml(value)}`"


def section_table(name: str) -> str:
    """Return the section of one table of the configuration."""
    rows = []
    for field in keys_of(SECTIONS[name]):
        mark = " ↻" if field.metadata["may_change"] else ""
        help = field.metadata["help"].replace("docs/configuration.md lists", "the table of [variants](#variants) lists")
        rows.append((f"`{field.name}`{mark}", help, values(range_of(field)), default(name, field)))
    return f"## [{name}]\n\n{TABLES[name]}\n\n{table('key | meaning | values | default', rows)}"


def assignments(keys: dict[str, Any]) -> str:
    """Return keys and values as `a = 1`, `b = 2`."""
    return ", ".join(f"`{name} = {to_toml(value)}`" for name, value in keys.items())


def variants_table() -> str:
    """Return the table of the keys in which the variants differ."""
    names = dict.fromkeys((section, name) for keys in VARIANTS.values() for section in keys for name in keys[section])
    rows = []
    for section, name in names:
        values = [preset_values("base", variant)[section].get(name) for variant in VARIANTS]
        row = ["paper" if value is None else str(to_toml(value)) for value in values]
        rows.append((f"`{section}.{name}`", *(f"`{value}`".replace('"', "") for value in row)))
    return table(" | ".join(["key", *(f"`{variant}`" for variant in VARIANTS)]), rows)


def page() -> str:
    """Return the text of docs/configuration.md."""
    presets = [
        (
            f"`{name}`",
            assignments(keys) or "none",
            assignments(PRESET_TRAIN.get(name, {})),
            assignments(PRESET_DATA.get(name, {})),
        )
        for name, keys in PRESETS.items()
    ]
    declared = {name: (values(s.range), f"`{s.default}`") for name, s in SETTINGS.items()} | OTHERS
    variables = [(f"`{name}`", meaning, *declared[name]) for name, meaning in MEANINGS.items()]
    first_of_tests = next(i for i, (name, *_) in enumerate(variables) if name == "`HYPOTHESIS_PROFILE`")
    head = "variable | meaning | values | default"
    return "\n".join(
        [
            INTRODUCTION,
            *(section_table(name) for name in SECTIONS),
            PRESETS_TEXT,
            table("preset | differs from base in | [train] | [data]", presets),
            VARIANTS_TEXT,
            variants_table(),
            VARIABLES_TEXT,
            table(head, variables[:first_of_tests]),
            table(head, variables[first_of_tests:]),
        ]
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())
