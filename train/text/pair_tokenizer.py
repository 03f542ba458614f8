"""Two vocabularies, one for the source and one for the target, in one tokenizer.json."""

import hashlib
import json
from collections.abc import Sequence
from os import PathLike
from typing import Any

from train.errors import UserError
from train.files import write_text
from train.text.sentencepiece_tokenizer import TYPE as SENTENCEPIECE
from train.text.sentencepiece_tokenizer import SentencePieceTokenizer
from train.text.tokenizer import REMEDY, Tokenizer, read_spec

SIDES = ("source", "target")
SHARED = "shared"  # key in the file; set if the tokenizers segment text differently but share subword ids


class PairTokenizer:
    """Encodes sources with one tokenizer, and encodes and decodes targets with another.

    Its file is a JSON object whose keys "source" and "target" each hold a Hugging Face tokenizer.json or a
    SentencePiece tokenizer. It is used like a `Tokenizer`: `encode_batch` takes sources, and `decode_batch` takes
    target ids. Its attributes `source` and `target` are the two tokenizers; a `Tokenizer` has the same attributes.

    Args:
        source, target: the tokenizers, which must have the same special ids.
        name: name of the file in error messages.
        shared: whether the tokenizers have the same vocabulary, so that they can share an embedding. Default False.

    Raises UserError if the special ids differ.
    """

    def __init__(
        self, source: Tokenizer, target: Tokenizer, name: str = "tokenizer.json", shared: bool = False
    ) -> None:
        if source.special_ids != target.special_ids:
            raise UserError(
                f"{name}: expected equal special ids of source and target; got {tuple(source.special_ids)} and "
                f"{tuple(target.special_ids)}; try {REMEDY}"
            )
        self.source, self.target, self.shared = source, target, shared
        self.special_ids = target.special_ids
        self.pad_id, self.bos_id, self.eos_id, _ = self.special_ids
        self.src_vocab_size = None if shared else source.vocab_size
        self.vocab_size, self.n_outputs = target.vocab_size, target.n_outputs
        self.digest = hashlib.sha256(f"{source.digest} {target.digest}".encode()).hexdigest()
        self.encode, self.encode_batch = source.encode, source.encode_batch
        self.decode, self.decode_batch = target.decode, target.decode_batch

    def save(self, path: str | PathLike[str]) -> None:
        """Write both tokenizers to one file; equal tokenizers give equal bytes."""
        specs = {side: getattr(self, side).spec for side in SIDES} | ({SHARED: True} if self.shared else {})
        write_text(path, json.dumps(specs, ensure_ascii=False, indent=1) + "\n")


TranslationTokenizer = Tokenizer | PairTokenizer  # one vocabulary for both sides, or one for each


def load_tokenizer(path: str | PathLike[str], source_class: type[Tokenizer] = Tokenizer) -> TranslationTokenizer:
    """Read a tokenizer.json with one vocabulary or two. Raises UserError for a missing or damaged file.

    Args:
        source_class: the class of the source's tokenizer, or of the only tokenizer.
    """
    specs: Any = read_spec(path)
    if not (isinstance(specs, dict) and specs.keys() - {SHARED} == {*SIDES}):
        return source_class.from_content(specs, path)
    for side in SIDES:
        if not isinstance(specs[side], dict) or not isinstance(specs[side].get("model"), dict):
            raise UserError(f"{path}: expected a tokenizer as '{side}'; got JSON without a 'model'; try {REMEDY}")
    classes: dict[str, type[Tokenizer]] = dict(zip(SIDES, (source_class, Tokenizer), strict=True))
    source, target = (make_tokenizer(specs[side], f"{path} ({side})", classes[side]) for side in SIDES)
    return PairTokenizer(source, target, str(path), specs.get(SHARED) is True)


def make_tokenizer(spec: dict[str, Any], name: str, tokenizer_class: type[Tokenizer] = Tokenizer) -> Tokenizer:
    """Return the tokenizer of one side. Raises UserError for a damaged `spec`."""
    if spec["model"].get("type") == SENTENCEPIECE:
        return SentencePieceTokenizer.from_spec(spec, name)
    return tokenizer_class(spec, name)


def train_pair_tokenizer(files: Sequence[str], kind: str, vocab_size: int, pretokenizer: str) -> PairTokenizer:
    """Train a vocabulary of at most `vocab_size` tokens on each of two files (see `Tokenizer.train`)."""
    source, target = (Tokenizer.train(file, kind, vocab_size, pretokenizer) for file in files)
    return PairTokenizer(source, target)
