"""Two vocabularies, one for the source and one for the target, in one tokenizer.json."""

import hashlib
import json
from collections.abc import Sequence
from os import PathLike
from typing import Any

from train.errors import UserError
from train.files import write_text
from train.json_files import read_json
from train.text.tokenizer import REMEDY, Tokenizer

SIDES = ("source", "target")


class PairTokenizer:
    """Encodes sources with one tokenizer, and encodes and decodes targets with another.

    Its file is a JSON object whose keys "source" and "target" each hold a Hugging Face tokenizer.json. It is used like
    a `Tokenizer`: `encode_batch` takes sources and `decode_batch` target ids. `source` and `target` are the two
    tokenizers, which every `Tokenizer` has too.

    Args:
        source, target: the tokenizers. Raises UserError unless their special ids are equal.
        name: name of the file in error messages.
    """

    def __init__(self, source: Tokenizer, target: Tokenizer, name: str = "tokenizer.json") -> None:
        if source.special != target.special:
            raise UserError(
                f"{name}: expected equal special ids of source and target; got {tuple(source.special)} and "
                f"{tuple(target.special)}; try {REMEDY}"
            )
        self.source, self.target = source, target
        self.special = target.special
        self.pad_id, self.bos_id, self.eos_id, _ = self.special
        self.src_vocab_size, self.vocab_size, self.n_outputs = source.vocab_size, target.vocab_size, target.n_outputs
        self.digest = hashlib.sha256(f"{source.digest} {target.digest}".encode()).hexdigest()
        self.encode, self.encode_batch = source.encode, source.encode_batch
        self.decode, self.decode_batch = target.decode, target.decode_batch

    def save(self, path: str | PathLike[str]) -> None:
        """Write both tokenizers to one file; equal tokenizers give equal bytes."""
        specs = {side: getattr(self, side).spec for side in SIDES}
        write_text(path, json.dumps(specs, ensure_ascii=False, indent=1) + "\n")


def load_tokenizer(path: str | PathLike[str], source_class: type[Tokenizer] = Tokenizer) -> Tokenizer | PairTokenizer:
    """Read a tokenizer.json with one vocabulary or two. Raises UserError if it is missing or damaged.

    source_class: the class of the tokenizer of the source, or of the only tokenizer.
    """
    specs: Any = read_json(path, "a Hugging Face tokenizer.json", REMEDY)
    if not (isinstance(specs, dict) and specs.keys() == {*SIDES}):
        return source_class.load(path)
    for side in SIDES:
        if not isinstance(specs[side], dict) or not isinstance(specs[side].get("model"), dict):
            raise UserError(f"{path}: expected a tokenizer as '{side}'; got JSON without a 'model'; try {REMEDY}")
    source, target = source_class(specs["source"], f"{path} (source)"), Tokenizer(specs["target"], f"{path} (target)")
    return PairTokenizer(source, target, str(path))


def train_pair(files: Sequence[str], kind: str, vocab_size: int, pretokenizer: str) -> PairTokenizer:
    """Train a vocabulary of at most `vocab_size` tokens on each of two files (see `Tokenizer.train`)."""
    source, target = (Tokenizer.train(file, kind, vocab_size, pretokenizer) for file in files)
    return PairTokenizer(source, target)
