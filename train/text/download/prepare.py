"""A corpus made ready for training: fetched, cleaned, with a vocabulary of its own and as token arrays.

    OUT/downloads/            the archives; what is put here by hand is taken
                 /begun.json  says that the folder is of this command
       /train.en, train.de    cleaned; valid.* and test.* keep every line but those that are empty on both sides
       /tokenizer.json
       /prepared/train/, valid/
       /manifest.json         where all of it comes from: written last

Each step is done once: where one was interrupted the same command goes on with it. A folder of anything else is left
alone, and so is one's own text.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import chain, product, repeat
from pathlib import Path
from typing import Any

from train.errors import UserError
from train.files import atomic_write, describe_path, digest, open_own_folder, read_sealed, write_json, write_text
from train.text.corpus import prepare
from train.text.download.catalog import Dataset
from train.text.download.clean import Cleaner, Rules
from train.text.download.fetch import fetch_all, shown_progress
from train.text.download.unpack import read_pairs
from train.text.lines import read_lines, read_parallel
from train.text.tokenizer import Tokenizer

BEGUN, TEXTS = "downloads/begun.json", "texts.json"
TOLD_EVERY = 1 << 20  # pairs


@dataclass(frozen=True)
class Settings:
    """How a corpus is made: what is left out, its vocabulary (None: the dataset's), the longest side in tokens."""

    rules: Rules = Rules()
    tokenizer: str | None = None
    vocab_size: int | None = None
    learn_from: int = 1_000_000  # lines a side for the vocabulary, evenly spaced, as its memory grows with the
    # different words of the text; 0: all
    max_length: int = 256


def collect(
    dataset: Dataset,
    out: Path,
    settings: Settings = Settings(),
    mirror: str = "",
    command: str = "",
    progress: bool = True,
) -> dict[str, Any]:
    """Makes the corpus in `out` and returns its manifest; UserError, in one line, for whatever stands in the way.

    `mirror`: where the archives are fetched from instead, a folder or a URL. `command` is noted in the manifest.
    """
    own = own_files(dataset)  # a mistake in a path makes no folder
    begun = open_own_folder(out, BEGUN, TEXTS, ignored=["downloads"])
    for path, made in product(own, out.iterdir() if out.is_dir() else ()):
        if made.exists() and made.samefile(path):
            raise UserError(f"{path}: expected text outside of --out; got {made}, where this writes; try another --out")
    settings = replace(
        settings,
        tokenizer=settings.tokenizer or dataset.tokenizer,
        vocab_size=settings.vocab_size or dataset.vocab_size,
    )

    def say(text: str) -> None:
        if progress:
            print(text, file=sys.stderr, flush=True)

    (out / "downloads").mkdir(parents=True, exist_ok=True)
    if begun is None:
        write_json(out / BEGUN, {"of": "npx-transformer data"})
    with shown_progress(progress) as told:
        sources = fetch_all(dataset.archives, out / "downloads", mirror, told)
    counts = write_texts(dataset, out, settings.rules, sources, say)
    train = [out / f"train.{language}" for language in (dataset.src, dataset.tgt)]
    tokenizer = learn(train, out / "tokenizer.json", settings, say)
    arrays = {}
    for part in ("train", "valid"):
        if part in counts:
            say(f"preparing {part}")
            src, tgt = (out / f"{part}.{language}" for language in (dataset.src, dataset.tgt))
            corpus = prepare(src, tgt, tokenizer, out / "prepared" / part, settings.max_length)
            arrays[part] = corpus.meta["pairs"] | {"tokens": corpus.meta["tokens"]}
    manifest = {
        "command": command, "settings": asdict(settings), "sources": sources, "texts": counts, "arrays": arrays,
        "tokenizer": {"digest": tokenizer.digest, "sha256": digest(out / "tokenizer.json"),
                      "types": tokenizer.vocab_size},
    }  # fmt: skip
    write_text(out / "manifest.json", json.dumps(manifest, indent=1) + "\n")
    return manifest


def write_texts(
    dataset: Dataset, out: Path, rules: Rules, sources: list[dict[str, Any]], say: Callable[[str], object]
) -> dict[str, Any]:
    """Writes the text of each part, where it is not there yet; for each how many pairs there were, and its hashes."""
    languages = dataset.src, dataset.tgt
    texts = {part: [asdict(pair) for pair in pairs] for part, pairs in dataset.parts.items()}
    made_of = [source["sha256"] for source in sources] + [digest(file) for file in own_files(dataset)]
    how = json.loads(json.dumps([texts, made_of, asdict(rules), dataset.held_out]))
    done = out / TEXTS
    if (before := read_sealed(done)) and before["how"] == how:
        names = [(part, language) for part in before["parts"] for language in languages]
        files = {(part, language): out / f"{part}.{language}" for part, language in names}
        sizes = {name: before["parts"][name[0]]["bytes"][name[1]] for name in names}
        if all(file.is_file() and file.stat().st_size == sizes[name] for name, file in files.items()):
            return before["parts"]
    streams: dict[str, Iterator[tuple[str, str]]] = {}
    for part, pairs in dataset.parts.items():
        say(f"reading {part}: {', '.join(pair.archive or pair.src for pair in pairs)}")
        streams[part] = chain.from_iterable(read_pairs(pair, out / "downloads") for pair in pairs)
    cleaner, every = Cleaner(rules), dataset.held_out
    clean = told_every(cleaner.kept(streams.pop("train")), lambda: say(f"{cleaner.counts['read']:,} pairs read"))
    shared_out = (("valid" if every and not n % every else "train", pair) for n, pair in enumerate(clean))
    parts = write_pairs(out, dict.fromkeys(["train", *["valid"] * bool(every)], languages), shared_out)
    parts["train"]["counts"] = dict(cleaner.counts)
    for part, stream in streams.items():
        parts |= write_pairs(out, {part: languages}, zip(repeat(part), filter(any, stream), strict=False))
    write_json(done, {"how": how, "parts": parts})
    return parts


def own_files(dataset: Dataset) -> list[str]:
    """The paths of one's own texts; UserError where one is no file."""
    own = [file for pairs in dataset.parts.values() for p in pairs if not p.archive for file in (p.src, p.tgt)]
    for path in own:
        if not Path(path).is_file():
            raise UserError(f"{path}: expected a text file; got {describe_path(path)}; try another path")
    return own


def told_every(pairs: Iterable[Any], tell: Callable[[], object]) -> Iterator[Any]:
    """The pairs, with a word now and then."""
    for number, pair in enumerate(pairs, 1):
        yield pair
        if number % TOLD_EVERY == 0:
            tell()


def write_pairs(
    out: Path, parts: Mapping[str, tuple[str, str]], pairs: Iterable[tuple[str, tuple[str, str]]]
) -> dict[str, Any]:
    """Writes (part, pair) to the files of its part, whole or not at all; UserError where one has no pair."""
    files = {part: [out / f"{part}.{language}" for language in languages] for part, languages in parts.items()}
    lines = dict.fromkeys(parts, 0)
    with ExitStack() as stack:
        opened = {file: stack.enter_context(atomic_write(file)) for side in files.values() for file in side}
        hashes = {file: hashlib.sha256() for file in opened}
        for part, pair in pairs:
            lines[part] += 1
            for file, text in zip(files[part], pair, strict=True):
                raw = f"{text}\n".encode()
                hashes[file].update(raw)
                opened[file].write(raw)
        for part, count in lines.items():
            if not count:
                raise UserError(f"{part}: expected at least one pair; got none that is kept; try other files or rules")
    return {
        part: {
            "lines": lines[part],
            "bytes": {file.suffix[1:]: file.stat().st_size for file in side},
            "sha256": {file.suffix[1:]: hashes[file].hexdigest() for file in side},
        }
        for part, side in files.items()
    }


def learn(train: list[Path], file: Path, settings: Settings, say: Callable[[str], object]) -> Tokenizer:
    """The tokenizer of the training text, learned where it is not there yet; UserError where it is too small."""
    kind, size, lines = settings.tokenizer or "bpe", settings.vocab_size or 37_000, settings.learn_from
    made_of = {"kind": kind, "vocab_size": size, "learn_from": lines, "sha256": [digest(path) for path in train]}
    done = file.with_name("tokenizer.made.json")
    if file.is_file() and read_sealed(done) == made_of:
        return Tokenizer.load(file)
    say(f"learning a {kind} vocabulary of {size:,} pieces")
    parts = chain.from_iterable(read_parallel(*train))
    sample = evenly(parts, len(train) * lines, train) if lines else parts
    tokenizer = Tokenizer(Tokenizer.learned(sample, kind, size, "words"))
    if tokenizer.vocab_size < size:
        raise UserError(
            f"vocabulary: expected text for {size:,} pieces; got only {tokenizer.vocab_size:,} different ones in "
            f"{train[0]} and {train[1]}; try --vocab-size {tokenizer.vocab_size}"
        )
    done.unlink(missing_ok=True)
    tokenizer.save(file)
    write_json(done, made_of)
    return tokenizer


def evenly(parts: Iterable[list[str]], most: int, paths: Iterable[Path]) -> Iterator[list[str]]:
    """Every k-th line of parts, for the least k that leaves at most `most` of those in the files `paths`."""
    total = sum(len(lines) for path in paths for lines in read_lines(path))
    every, before = -(-total // most), 0
    for lines in parts:
        yield lines[-before % every :: every]
        before += len(lines)
