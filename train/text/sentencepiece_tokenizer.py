"""Tokenizers of other programs that segment text with SentencePiece and map pieces to ids with a separate vocabulary.

The library `sentencepiece` (extra `formats`), with which the models were trained, segments the text. For some texts, a
conversion to `tokenizers` would give different pieces (docs/formats.md).
"""

import base64
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from train.errors import UserError, one_line, pip_install
from train.text.tokenizer import SPACE, SpecialIds, Tokenizer, check_surrogates, normalize

TYPE = "SentencePiece"  # type of the "model" in tokenizer.json
# Marks around the language code at the start of a multilingual model's source: ">>deu<< A dog runs.".
CODE_MARKS = ">>", "<<"
UNKNOWN = "\u2047"  # decodes the unknown token
N_THREADS = 1  # a batch is too small to benefit from more threads


class SentencePieceTokenizer(Tokenizer):
    """Encodes and decodes one side of a translation.

    Args:
        model: the content of a SentencePiece model.
        vocabulary: the id of each piece, 0 to V - 1.
        special_ids: the special ids; `unk_id` stands for pieces that are not in the vocabulary.
        name: name of the file in error messages.

    Raises UserError if the library is missing, the model is damaged or the ids are not 0 to V - 1.
    """

    def __init__(
        self, model: bytes, vocabulary: Mapping[str, int], special_ids: SpecialIds, name: str = "tokenizer.json"
    ) -> None:
        self._processor = load_engine(model, name)
        ids = [*vocabulary.values()]
        if not all(type(i) is int for i in ids) or sorted(ids) != list(range(len(ids))):
            raise UserError(
                f"{name}: expected each id from 0 to {len(ids) - 1} once; got missing or repeated ids; "
                "try a new download"
            )
        if not all(type(i) is int and 0 <= i < len(ids) for i in special_ids):
            got = tuple(special_ids)
            raise UserError(f"{name}: expected special ids below {len(ids)}; got {got}; try a new download")
        self.model, self.vocabulary = model, dict(vocabulary)
        self._pieces = sorted(self.vocabulary, key=self.vocabulary.__getitem__)
        self.special_ids = special_ids
        self.pad_id, self.bos_id, self.eos_id, _ = special_ids
        self.vocab_size = self.n_outputs = len(ids)
        self._dropped = {self.pad_id, self.bos_id, self.eos_id}
        self._spellings = [*self._pieces]  # as decoded; the library decodes the unknown token as UNKNOWN between spaces
        self._spellings[special_ids.unk_id] = UNKNOWN
        canonical = json.dumps(self.spec, sort_keys=True, separators=(",", ":"))
        self.digest = hashlib.sha256(canonical.encode()).hexdigest()

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], name: str) -> "SentencePieceTokenizer":
        """Return the tokenizer of a `spec`. Raises UserError for a damaged `spec`."""
        try:
            content = spec["model"]
            model = base64.b64decode(content["proto"], validate=True)
            return cls(model, content["vocab"], SpecialIds(**spec["special"]), name)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{name}: expected a SentencePiece tokenizer; got '{one_line(error)}'; try importing the model again"
            ) from None

    @property
    def spec(self) -> dict[str, Any]:
        """The content of the tokenizer.json."""
        proto = base64.b64encode(self.model).decode()
        return {
            "model": {"type": TYPE, "proto": proto, "vocab": self.vocabulary},
            "special": self.special_ids._asdict(),
        }

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without special ids. A language code at the start of a text is one token.

        Raises UserError for a text with lone surrogates, which stand for invalid UTF-8 in Python.
        """
        check_surrogates(texts)
        splits = [split_code(text, self.vocabulary) for text in texts]
        codes, rests = zip(*splits, strict=True) if splits else ((), ())
        pieces = self._processor.encode(list(rests), out_type=str, num_threads=N_THREADS)
        get = self.vocabulary.get
        unk = self.special_ids.unk_id
        return [
            [get(piece, unk) for piece in ([code] if code else []) + line]
            for code, line in zip(codes, pieces, strict=True)
        ]

    def decode_batch(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each sequence of ids; unknown tokens become U+2047, and other special ids are dropped.

        Raises ValueError for an id outside the vocabulary.
        """
        for i in (i for sequence in sequences for i in sequence):
            if not 0 <= i < self.vocab_size:
                raise ValueError(f"ids: expected 0 to {self.vocab_size - 1}; got {i}")
        lines = [[self._spellings[i] for i in sequence if i not in self._dropped] for sequence in sequences]
        return [normalize(text.replace(SPACE, " ")) for text in map(self._processor.decode_pieces, lines)]

    def spelling(self, token_id: int) -> str:
        """Return one token as the vocabulary spells it."""
        return self._pieces[int(token_id)]

    def subwords(self, ids: Sequence[int]) -> list[str]:
        """Return each id as text, with SPACE for a space."""
        return [self._pieces[int(i)] for i in ids]


def load_engine(model: bytes, name: str) -> Any:
    """Return a SentencePieceProcessor. Raises UserError if the library is missing or the model is damaged."""
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError:
        raise UserError(f"{name}: the library sentencepiece is not installed; try {pip_install('formats')}") from None
    try:
        return SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise UserError(
            f"{name}: expected a SentencePiece model; got '{one_line(error)[:100]}'; try a new download"
        ) from None


def split_code(text: str, vocabulary: Collection[str]) -> tuple[str, str]:
    """Split a text into the language code that it begins with ("" if the vocabulary has none) and the rest."""
    begin, end = CODE_MARKS
    if text.startswith(begin) and (stop := text.find(end)) != -1:
        code, rest = text[: stop + len(end)], text[stop + len(end) :]
        if code in vocabulary:
            return code, rest
    return "", text
