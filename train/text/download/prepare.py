"""Prepare a corpus for training: download it, clean it, train a tokenizer and write token arrays.

    OUT/begun.json            written first; marks the folder as created by this command
       /downloads/            archives; files that the user puts here are used
       /train.en, train.de    cleaned text; from valid.* and test.*, only lines that are empty on both sides are removed
       /tokenizer.json
       /prepared/train/, valid/
       /manifest.json         sources and settings, written last

Each step is done once: after an interruption, the same command continues with the unfinished step. The command never
replaces a complete folder with one that has different texts or settings, and never modifies other folders or the user's
own text files.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain, product, repeat
from pathlib import Path
from typing import Any

from train.errors import ReadError, UserError
from train.files import WriteError, atomic_write, digest, is_same_file, make_folder, open_for_reading, write_text
from train.json_files import (
    Schema,
    read_json,
    read_output_marker,
    read_sealed,
    reject_links,
    schema_error,
    write_sealed,
)
from train.lock import FolderLock, lock_folder
from train.progress import Display, Work
from train.text.corpus import ARRAYS, prepare
from train.text.download.catalog import Dataset
from train.text.download.clean import REASONS, Cleaner, Rules, clean_pairs
from train.text.download.fetch import fetch_all
from train.text.download.hold_out import choose_sources, hold_out
from train.text.download.unpack import read_pairs
from train.text.lines import check_parallel, count_shared_lines, read_lines, read_parallel
from train.text.tokenizer import MIN_VOCAB_SIZE, Tokenizer

MARKER_FILE = "begun.json"
TEXTS_FILE = "texts.json"
IGNORED_NAMES = ("downloads", "lock")
# The options of `data` whose names differ from those of their settings, which the manifest stores.
OPTIONS = {"scripts": "--keep-non-latin", "duplicates": "--keep-duplicates", "learn_from": "--tokenizer-lines"}


@dataclass(frozen=True)
class PreparationOptions:
    """Options of the preparation; if `tokenizer` is None, the dataset determines the tokenizer."""

    rules: Rules = Rules()
    tokenizer: str | None = None
    vocab_size: int | None = None
    # Maximum number of (evenly spaced) lines per side on which the tokenizer is trained; 0 means all. The trainer's
    # memory grows with the number of distinct words.
    learn_from: int = 1_000_000
    max_length: int = 256
    hold_out: int = 0  # number of distinct sources taken out of the training text for validation


def prepare_dataset(
    dataset: Dataset,
    out: Path,
    settings: PreparationOptions = PreparationOptions(),
    mirror: str = "",
    command: str = "",
    progress: bool = True,
) -> dict[str, Any]:
    """Prepare a corpus in the folder `out` and return its manifest.

    Args:
        dataset: archives and texts of the corpus.
        out: folder to write: a new one, the folder of an interrupted preparation, or one with the same texts and
            settings.
        settings: cleaning rules, tokenizer and maximum length.
        mirror: a folder or URL that replaces the published URLs of the archives.
        command: command line, recorded in the manifest.
        progress: whether to report progress on stderr.

    Raises UserError for any invalid input or failed download.
    """
    user_paths = user_files(dataset)  # check the paths before creating the folder
    read_output_marker(out, MARKER_FILE, TEXTS_FILE, ignored=IGNORED_NAMES)
    for path, output in product(user_paths, out.rglob("*")):
        if output.exists() and output.samefile(path):
            raise UserError(f"{path}: expected a text outside the output folder; got {output}; try another --out")
    may_shrink = settings.vocab_size is None and not dataset.archives
    settings = replace(
        settings,
        tokenizer=settings.tokenizer or dataset.tokenizer,
        vocab_size=settings.vocab_size or dataset.vocab_size,
    )
    for files in zip(user_paths[::2], user_paths[1::2], strict=True):
        if not any(file.lower().endswith(".gz") for file in files):  # compressed lines are counted while they are read
            check_parallel(*files)
    missing = [folder for folder in (out / "downloads", out, *out.parents) if not os.path.lexists(folder)]
    make_folder(out)
    with lock_folder(out, "data") as lock, ExitStack() as stack:
        marker = read_output_marker(out, MARKER_FILE, TEXTS_FILE, ignored=IGNORED_NAMES)
        if marker is None and not dataset.archives:
            stack.enter_context(remove_after_user_error(lock, dataset, missing))
        reject_links(out / "downloads", out / "prepared")
        user_sources = [
            {"file": os.path.abspath(p), "bytes": Path(p).stat().st_size, "sha256": digest(p)} for p in user_paths
        ]
        check_same_inputs(out, settings, [{"file": archive.name} for archive in dataset.archives] or user_sources)
        make_folder(out / "downloads")
        if marker is None:
            write_sealed(out / MARKER_FILE, {"of": "npx-transformer data"})
        display = stack.enter_context(Display(progress))
        sources = fetch_all(dataset.archives, out / "downloads", mirror, display) + user_sources
        texts = write_texts(dataset, out, settings, sources, display)
        train = [out / f"train.{language}" for language in (dataset.src, dataset.tgt)]
        tokenizer = train_tokenizer(train, out / "tokenizer.json", settings, display, may_shrink)
        arrays = {}
        for part in ("train", "valid"):
            if part in texts:
                src, tgt = (out / f"{part}.{language}" for language in (dataset.src, dataset.tgt))
                with display.work(f"encoding {part}", "pairs", texts[part]["lines"]) as work:
                    corpus = prepare(src, tgt, tokenizer, out / "prepared" / part, settings.max_length, work.set_done)
                display.write(f"encoded {part}: {work.result()}" if work.done else f"{part} is already encoded")
                arrays[part] = corpus.meta["pairs"] | {"tokens": corpus.meta["tokens"]}
        sides = [out / f"{part}.{dataset.src}" for part in ("valid", "train")]
        shared = count_shared_lines(*sides)[0] if "valid" in texts else 0
        manifest = {
            "command": command, "settings": asdict(settings), "sources": sources,
            "shared_sources": shared, "pairs": count_outcomes(texts["train"], arrays["train"]),
            "texts": texts, "arrays": arrays,
            "tokenizer": {"digest": tokenizer.digest, "sha256": digest(out / "tokenizer.json"),
                          "types": tokenizer.vocab_size},
        }  # fmt: skip
        write_text(out / "manifest.json", json.dumps(manifest, indent=1) + "\n")
        return manifest


@contextmanager
def remove_after_user_error(lock: FolderLock, dataset: Dataset, missing: list[Path]) -> Iterator[None]:
    """Remove the files of a preparation, and the folders that were `missing`, if the `with` block raises UserError.

    Other files remain, such as those that the user has put into `downloads`. All files remain after a WriteError, and
    if the user has moved the folder.
    """
    out = lock.folder
    try:
        yield
    except WriteError:
        raise
    except UserError:
        if not is_same_file(lock.descriptor, out):
            raise
        texts = [f"{part}.{language}" for part in ("train", "valid") for language in (dataset.src, dataset.tgt)]
        arrays = [f"prepared/{part}/{name}" for part in ("train", "valid") for name in (*ARRAYS, "meta.json")]
        for name in (*texts, *arrays, "tokenizer.json", "tokenizer.made.json", TEXTS_FILE, MARKER_FILE, "lock"):
            with suppress(OSError):
                (out / name).unlink()
        for folder in (*out.glob("prepared/*"), out / "prepared", *missing):
            with suppress(OSError):  # the folder is not empty, so it stays
                folder.rmdir()
        raise


def check_same_inputs(out: Path, settings: PreparationOptions, sources: list[dict[str, Any]]) -> None:
    """Raise UserError if `out` is complete and has different sources or settings, because runs may train on it.

    Two differences are accepted: a user's text was moved, and a validation text was added.
    """
    file = out / "manifest.json"
    if not os.path.lexists(file):
        return
    try:
        manifest = read_json(file, "the manifest of `data`", "deleting the file")
    except UserError as error:
        if read_sealed(out / TEXTS_FILE) is None and file.is_file() and not isinstance(error, ReadError):
            return  # no settings are known, and no run can use the folder
        raise
    if problem := schema_error(manifest, {"settings": {"rules": dict}, "sources": list}):
        raise UserError(f"{file}: {problem}; try deleting the file")
    check_max_length(out, manifest["settings"].get("max_length"))
    stored, requested = ({**values.pop("rules"), **values} for values in (manifest["settings"], asdict(settings)))
    stored = requested | {"hold_out": 0} | stored  # earlier versions did not record every setting
    differing = [name for name in requested if requested[name] != stored[name]]
    changes = [OPTIONS.get(name, f"--{name.replace('_', '-')}") for name in differing]
    stored_sources = [source for source in manifest["sources"] if isinstance(source, dict)]
    for source, given in zip(stored_sources, sources + [{}] * len(stored_sources), strict=False):
        key = "sha256" if "sha256" in given else "file"  # archives have no digest before they are downloaded
        if source.get(key) != given.get(key):
            changes.append(f"text ({source.get('file')})")
            break
    if changes:
        raise UserError(
            f"{out} was prepared with a different {' and a different '.join(changes)}, and runs may use it; "
            f"repeat the command in {file}, choose another --out, or delete {out}"
        )


def check_max_length(folder: Path, max_length: object) -> None:
    """Raise UserError if the maximum length in the manifest was edited and no longer fits the token arrays."""
    meta = read_sealed(folder / "prepared" / "train" / "meta.json") or {}
    if (prepared := meta.get("max_length", max_length)) != max_length:
        raise UserError(
            f"{folder / 'manifest.json'}: expected settings.max_length = {prepared}, as in {folder / 'prepared'}; "
            f"got {max_length}; try changing it back to {prepared}, or the `data` command with a new --out"
        )


def read_record(out: Path, dataset: Dataset, *parts: str) -> Any:
    """Return the content of texts.json, or None if the file is missing or damaged, or lacks one of `parts`."""
    counts = dict.fromkeys(("read", "kept", *REASONS), int)
    languages = dataset.src, dataset.tgt
    text: Schema = {"lines": int, "bytes": dict.fromkeys(languages, int), "sha256": dict.fromkeys(languages, str)}
    schema: Schema = {"how": list, "parts": dict.fromkeys(parts, text) | {"train": {**text, "counts": counts}}}
    record = read_sealed(out / TEXTS_FILE)
    return None if record is None or schema_error(record, schema) else record


def count_outcomes(text: Mapping[str, Any], array: Mapping[str, Any]) -> dict[str, int]:
    """Count the training pairs by outcome; the counts sum to `read`.

    A pair is removed for one of the REASONS, held out for validation, skipped when the text is encoded (`too_long`, or
    `no_tokens` on a side), or `kept` for training.
    """
    counts = text["counts"]
    removed = {reason: counts[reason] for reason in REASONS}
    left_out = {"too_long": array["too_long"], "no_tokens": array["empty"]}
    return {"read": counts["read"], **removed, "held_out": counts["kept"] - text["lines"], **left_out,
            "kept": array["kept"]}  # fmt: skip


def write_texts(
    dataset: Dataset, out: Path, settings: PreparationOptions, sources: list[dict[str, Any]], display: Display
) -> dict[str, Any]:
    """Write the text of each part, unless it is up to date; return the counts and hashes of each part."""
    languages = dataset.src, dataset.tgt
    # The user's own files, which have no archive, are identified by their hashes, because they may move.
    texts = {part: [asdict(pair) if pair.archive else {} for pair in pairs] for part, pairs in dataset.parts.items()}
    input_hashes = [source["sha256"] for source in sources]
    recipe = json.loads(json.dumps([texts, input_hashes, asdict(settings.rules), dataset.held_out]))
    recipe += [settings.hold_out] * bool(settings.hold_out)
    record = read_record(out, dataset, *texts)
    if record and record["how"] == recipe:
        hashes = {out / f"{part}.{language}": text["sha256"][language]
                  for part, text in record["parts"].items() for language in languages}  # fmt: skip
        if all(file.is_file() and digest(file) == sha256 for file, sha256 in hashes.items()):
            return record["parts"]
    # The manifest stays, because it protects the folder, and its hashes expose texts that differ after an interruption.
    if (out / "manifest.json").is_file():
        display.write(f"{out}: texts are missing, changed or new; preparing them again")

    def read(part: str) -> Iterator[tuple[str, str]]:
        return chain.from_iterable(read_pairs(pair, out / "downloads") for pair in dataset.parts[part])

    streams: dict[str, Iterator[tuple[str, str]]] = {}
    for part, pairs in dataset.parts.items():
        display.write(f"reading {part}: {', '.join(pair.archive or pair.src for pair in pairs)}")
        streams[part] = read(part)
    cleaner = Cleaner(settings.rules)
    interval = dataset.held_out
    pairs_by_part: Iterable[tuple[str, tuple[str, str]]]
    if settings.hold_out:
        with display.work("choosing the held-out sources", "pairs") as work:
            pairs_left = clean_pairs(Cleaner(settings.rules), count_pairs(read("train"), work))
            chosen = choose_sources(pairs_left, settings.hold_out)
    with display.work("cleaning train", "pairs") as work:
        clean = clean_pairs(cleaner, count_pairs(streams.pop("train"), work))
        if settings.hold_out:
            pairs_by_part = hold_out(clean, chosen)
        else:
            pairs_by_part = (
                ("valid" if interval and not n % interval else "train", pair) for n, pair in enumerate(clean)
            )
        has_valid = bool(interval or settings.hold_out)
        parts = write_pairs(out, dict.fromkeys(["train", *["valid"] * has_valid], languages), pairs_by_part)
    display.write(f"cleaned train: {work.result()}")
    parts["train"]["counts"] = dict(cleaner.counts)
    for part, stream in streams.items():
        parts |= write_pairs(out, {part: languages}, zip(repeat(part), filter(any, stream), strict=False))
    for path, sha256 in zip(user_files(dataset), input_hashes[len(dataset.archives) :], strict=True):
        if digest(path) != sha256:
            raise UserError(f"{path}: the text changed while it was being read; try the same command again")
    write_sealed(out / TEXTS_FILE, {"how": recipe, "parts": parts})
    return parts


def user_files(dataset: Dataset) -> list[str]:
    """Return the paths of the user's own texts; raise UserError if one is not a file."""
    paths = [file for pairs in dataset.parts.values() for p in pairs if not p.archive for file in (p.src, p.tgt)]
    for path in paths:
        with open_for_reading(path, "a text file"):
            pass
    return paths


def count_pairs(pairs: Iterable[Any], work: Work) -> Iterator[Any]:
    """Yield the pairs, and advance `work` by one for each pair."""
    for pair in pairs:
        work.advance()
        yield pair


def write_pairs(
    out: Path, parts: Mapping[str, tuple[str, str]], pairs: Iterable[tuple[str, tuple[str, str]]]
) -> dict[str, Any]:
    """Write (part, pair) items to the files of the parts, atomically; raise UserError if a part has no pair."""
    files = {part: [out / f"{part}.{language}" for language in languages] for part, languages in parts.items()}
    n_lines = dict.fromkeys(parts, 0)
    with ExitStack() as stack:
        outputs = {file: stack.enter_context(atomic_write(file)) for side in files.values() for file in side}
        hashes = {file: hashlib.sha256() for file in outputs}
        for part, pair in pairs:
            n_lines[part] += 1
            for file, text in zip(files[part], pair, strict=True):
                raw = f"{text}\n".encode()
                hashes[file].update(raw)
                outputs[file].write(raw)
        for part, count in n_lines.items():
            if not count:
                names = ", ".join(file.name for file in files[part])
                raise UserError(
                    f"{part} ({names}): expected at least one pair of lines with text; got 0; try other files"
                )
    return {
        part: {
            "lines": n_lines[part],
            "bytes": {file.suffix[1:]: file.stat().st_size for file in side},
            "sha256": {file.suffix[1:]: hashes[file].hexdigest() for file in side},
        }
        for part, side in files.items()
    }


def train_tokenizer(
    train: list[Path], file: Path, settings: PreparationOptions, display: Display, may_shrink: bool = False
) -> Tokenizer:
    """Train the tokenizer, unless it is up to date.

    If the text is too small for the vocabulary, warns if the vocabulary `may_shrink`, and otherwise raises UserError.
    """
    kind = settings.tokenizer or "bpe"
    size = settings.vocab_size or 37_000
    n_lines = settings.learn_from
    recipe = {"kind": kind, "vocab_size": size, "learn_from": n_lines, "sha256": [digest(path) for path in train]}
    record_file = file.with_name("tokenizer.made.json")
    if file.is_file() and read_sealed(record_file) == recipe | {"tokenizer_sha256": digest(file)}:
        return Tokenizer.load(file)
    display.write(f"training a {kind} vocabulary of {size:,} tokens")
    with display.work("training the vocabulary") as work:
        chunks = chain.from_iterable(read_parallel(*train))
        sample = evenly_spaced(chunks, len(train) * n_lines, train) if n_lines else chunks
        tokenizer = Tokenizer(Tokenizer.train_spec(sample, kind, size, "words"))
    display.write(f"trained the vocabulary in {work.seconds:.1f} s")
    if tokenizer.vocab_size < size:
        fewer = max(MIN_VOCAB_SIZE, min(8000, tokenizer.vocab_size // 2))
        message = (
            f"vocabulary: expected enough text for {size:,} tokens; got enough for {tokenizer.vocab_size:,} in "
            f"{train[0]} and {train[1]}; try --vocab-size {fewer}{' and another --out' * may_shrink}, because with "
            f"close to {tokenizer.vocab_size:,} tokens nearly every word is a single token"
        )
        if not may_shrink:
            raise UserError(message)
        display.write(f"warning: {message}")
    tokenizer.save(file)
    write_sealed(record_file, recipe | {"tokenizer_sha256": digest(file)})
    return tokenizer


def evenly_spaced(chunks: Iterable[list[str]], max_lines: int, paths: Iterable[Path]) -> Iterator[list[str]]:
    """Yield every k-th line, where k is the smallest number that keeps at most `max_lines` lines of `paths`."""
    total = sum(len(lines) for path in paths for lines in read_lines(path))
    step = -(-total // max_lines)
    n_before = 0
    for lines in chunks:
        yield lines[-n_before % step :: step]
        n_before += len(lines)
