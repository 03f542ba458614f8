"""Find the keys of [data] for training a model on a folder that `data` has written."""

import difflib
from pathlib import Path
from typing import Any

from npx.ranges import Range
from train.errors import UserError, quote
from train.files import MISSING, describe_path, text_digest
from train.json_files import Schema, read_json, reject_links, schema_error
from train.text.download.prepare import MARKER_FILE, check_max_length

SCHEMA: Schema = {
    "settings": {"max_length": Range(int, "[2, 65535]")},
    "texts": {"train": {"sha256": dict}},
    "tokenizer": {"types": Range(int, "[5, 16777216]"), "sha256": str},
}


def data_keys(folder: Path) -> dict[str, Any]:
    """Return the keys for texts, tokenizer, token arrays and maximum length.

    The valid_* keys are included only if there is a validation text. Raises UserError, naming the file, if `data` has
    not written the folder or if a file has changed since then.
    """
    file = folder / "manifest.json"
    out = folder if describe_path(folder) in (MISSING, "an empty folder") else "DIR"
    data_command = f"`npx-transformer data own --train-src F --train-tgt F --out {quote(out)}`"
    if not file.is_file():
        subfolders, siblings = ([str(p.parent) for p in f.glob("*/manifest.json")] for f in (folder, folder.parent))
        parents = [str(folder.parent)] if (folder.parent / "manifest.json").is_file() else []
        got, suggestion = describe_path(folder), data_command
        if folder.is_file():
            suggestion = f"--train-src {quote(folder)} --train-tgt F"
        if (folder / MARKER_FILE).is_file():
            got, suggestion = "an unfinished folder", "the same `data` command again"
        elif (folder / "config.toml").is_file():
            got, suggestion = (
                "a run",
                f"the folder that the run was trained on, or, instead of CONFIG, --init {quote(folder)}",
            )
        elif similar := parents or subfolders or difflib.get_close_matches(str(folder), siblings):
            suggestion = quote(similar[0])
        raise UserError(f"{folder}: expected a folder written by `npx-transformer data`; got {got}; try {suggestion}")
    reject_links(folder / "prepared")
    manifest = read_json(file, "the manifest of `data`", "the `data` command again")
    if not (problem := schema_error(manifest, SCHEMA)):
        texts = manifest["texts"]
        languages = texts["train"]["sha256"]
        hashes = dict.fromkeys(texts, {"sha256": dict.fromkeys(languages, str)})
        problem = schema_error({"texts": texts}, {"texts": hashes})
        problem = problem if len(languages) == 2 else "texts.train.sha256: expected two languages"
    if problem:
        raise UserError(f"{file}: {problem}; try {data_command}")
    check_max_length(folder, manifest["settings"]["max_length"])
    keys: dict[str, Any] = {}
    for part in ("train", "valid"):
        hashes = manifest["texts"].get(part, {}).get("sha256", {})
        for side, (language, sha256) in zip(("src", "tgt"), hashes.items(), strict=False):
            text = folder / f"{part}.{language}"
            check_unchanged(text, sha256, f"the text of {file}")
            keys[f"{part}_{side}"] = str(text)
    tokenizer = folder / "tokenizer.json"
    check_unchanged(tokenizer, manifest["tokenizer"]["sha256"], f"the tokenizer of {file}")
    return keys | {
        "tokenizer": str(tokenizer),
        "vocab_size": manifest["tokenizer"]["types"],
        "max_length": manifest["settings"]["max_length"],
        "prepared": str(folder / "prepared"),
    }


def check_unchanged(file: Path, sha256: str, expected: str) -> None:
    """Raise UserError unless a file still has the content that `data` wrote."""
    if not file.is_file() or text_digest(file) != sha256:
        got = "a changed file" if file.is_file() else describe_path(file)
        raise UserError(f"{file}: expected {expected}; got {got}; try the `data` command again")
