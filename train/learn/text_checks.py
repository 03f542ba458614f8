"""Checks of a run's texts before training: that they are those of the run and its token arrays, and warnings."""

import filecmp
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from train.errors import UserError, quote
from train.files import text_digest
from train.json_files import read_output_marker, read_sealed, reject_links
from train.run import checkpoint as store
from train.run.config import RunConfig
from train.run.folder import RunFolder
from train.tasks import TASKS, Task
from train.tasks.protocols import Corpus, TextTokenizer
from train.text.lines import count_shared_lines

TextFiles = Mapping[str, tuple[str, ...]]
# Maps each part of the text to the key of state.json with the SHA-256 of its files, and to its name in messages.
TEXT_KEYS = {"train": ("text_sha256", "training"), "valid": ("valid_sha256", "validation")}
ORIGINAL_FILES = "the original files"


def check_resumable(run: RunFolder, task: Task, tokenizer: TextTokenizer, text_files: TextFiles) -> None:
    """Raise UserError if a run was trained with another tokenizer or text. Call this before anything is written."""

    def advice(part: str, digests: list[str]) -> str:
        with suppress(UserError):  # config.toml is missing or damaged
            data = run.load_config().data
            files = [getattr(data, key) for key in task.keys_in_use(data)[part]]
            if all(map(os.path.isfile, files)) and [*map(text_digest, files)] == digests:
                return f"the files of the run ({', '.join(map(quote, files))}), which it uses if you name none"
        return ORIGINAL_FILES

    for path, state in islice(store.readable_states(reversed(run.step_paths())), 1):
        store.check_tokenizer(tokenizer, state, run.tokenizer_file)
        check_same_text(path, state, {part: map(text_digest, files) for part, files in text_files.items()}, advice)


def has_new_text(run: RunFolder, prepared: str, files: Iterable[str]) -> bool:
    """Return whether a run without a checkpoint, and so its tokenizer, began with another training text than `files`.

    `prepared` is the folder of token arrays that the run shares with others, or "".
    """
    meta = read_sealed(run.data_path("train", prepared) / "meta.json") or {}
    digests = meta.get("sha256", {}).values()  # empty until the token arrays are complete
    return not run.step_paths() and bool(digests) and [*digests] != [text_digest(file) for file in files]


def check_same_text(
    path: Path,
    state: Mapping[str, Any],
    digests: Mapping[str, Iterable[str]],
    advice: Callable[[str, list[str]], str] = lambda part, digests: ORIGINAL_FILES,
) -> None:
    """Raise UserError if the text digests in `state`, which the checkpoint `path` contains, differ from `digests`.

    `advice` returns what to try if the text of a part differs from that with the given digests.
    """
    for part, (key, name) in TEXT_KEYS.items():
        if part not in digests or not isinstance(state.get(key), dict):
            continue
        recorded = [*state[key].values()]
        if recorded != [*digests[part]]:
            raise UserError(
                f"resume: expected the {name} text of {path}; got a text with a different SHA-256; try "
                f"{advice(part, recorded)}, or a new run that starts from its weights (--init RUN --out NEW)"
            )


def check_shared_arrays(
    run: RunFolder, part: str, config: RunConfig, tokenizer: TextTokenizer, paths: Iterable[str]
) -> None:
    """Raise UserError if a shared folder has other files, or token arrays that differ from those of this run.

    They differ if they were made with another tokenizer, text or maximum length. They are not replaced, because other
    runs may need them.
    """
    data = config.data
    folder, max_length = run.data_path(part, data.prepared), data.max_length
    reject_links(folder)
    meta = read_output_marker(folder, "meta.json")
    if not meta:
        return
    differing = {
        "tokenizer": meta.get("tokenizer") != tokenizer.digest,
        "text": [*meta.get("sha256", {}).values()] != [text_digest(path) for path in paths],
        "max_length": meta.get("max_length", max_length) != max_length,  # tasks that do not cut text store no value
    }
    if different := next((name for name, is_different in differing.items() if is_different), ""):
        advice = ""
        is_new = not run.step_paths()
        if is_new and different == "text" and part == "train" and data.tokenizer not in TASKS[data.task].tokenizers:
            advice = f"; data.tokenizer = {data.tokenizer} stays, and --set data.tokenizer=bpe trains a new tokenizer"
        raise UserError(
            f"data.prepared: expected token arrays made with this run's text, tokenizer and max_length; got arrays in "
            f"{folder} made with a different {different}; try --set data.prepared=, "
            f"which stores the arrays of the current text in the run folder{advice}"
        )


def left_out_warnings(corpus: Corpus, files: Iterable[str]) -> list[str]:
    """Return a warning if most of a text was left out because it is longer than data.max_length."""
    meta = getattr(getattr(corpus, "pairs", corpus), "meta", {})
    counts = meta.get("pairs", {"too_long": 0, "read": 0})
    if 2 * counts["too_long"] <= counts["read"]:
        return []
    return [
        f"warning: {', '.join(files)}: {counts['too_long']:,} of {counts['read']:,} examples are left out, because "
        f"they are longer than data.max_length = {meta['max_length']:,} tokens; try a larger data.max_length"
    ]


def equal_sides_warnings(text_files: TextFiles) -> list[str]:
    """Return a warning for each text of pairs whose two sides are equal."""
    return [
        f"warning: the two sides of the {part} text are equal ({', '.join(files)}); try the file of each language"
        for part, files in text_files.items()
        if filecmp.cmp(files[0], files[1], shallow=False)
    ]


def shared_lines_warnings(text_files: TextFiles) -> list[str]:
    """Return a warning if sources of a validation text of pairs also occur in the training text."""
    if "valid" not in text_files:
        return []
    n, total = count_shared_lines(text_files["valid"][0], text_files["train"][0])
    if not n:
        return []
    return [
        f"warning: {n:,} of {total:,} validation sources also occur in the training text, so validation scores "
        "overestimate the quality on new text; `data own --hold-out N` creates a validation text without them"
    ]
