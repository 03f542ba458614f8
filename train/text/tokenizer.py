r"""Text to token ids and back: a joint sub-word vocabulary learned on the training text (section 5.1 of the paper).

Text is first normalised: a run of white space becomes one space.  Then it is cut into words, each with the space
before it, and a word is spelled in UTF-8 bytes (a printable character stands for each, "Ġ" for a space) and joined
into pieces:

    bpe        byte-pair encoding: the earliest learned merge that applies, again and again        (EN-DE in the paper)
    wordpiece  greedy: the longest piece that the rest of the word starts with, again and again    (EN-FR in the paper)

All 256 bytes are pieces, so nothing is ever unknown and `decode(encode(text))` is the normalised text, whatever it
holds.  Both kinds learn their pieces with the pair-merging trainer of Hugging Face `tokenizers`, and the result is a
`tokenizer.json` that the library loads by itself.  We write that file ourselves, in a fixed order, so that the same
text always gives the same bytes.
"""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HuggingFaceTokenizer

from train.errors import UserError, one_line
from train.files import read_json, write_text
from train.text.lines import read_lines, read_parallel

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
KINDS = ("bpe", "wordpiece")
# A word over 100 characters is cut, for longest-match takes cubic time in a word's length.  "<" never stays with
# letters, so that no piece of text can be spelled like a special token, whichever kind of model looks for it.
PRETOKENIZERS = {
    "words": r" ?[\p{L}\p{M}]{1,100}| ?\p{N}{1,100}| ?[^\s\p{L}\p{M}\p{N}]{1,100}",  # letters, digits, the rest
    "whitespace": r" ?(?:<|[^\s<]{1,100})",  # for text that is already tokenised
}
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())  # 256 characters, one per byte
SMALLEST = len(SPECIALS) + len(ALPHABET)
# Unicode's White_Space, spelled out because Python's \s also takes U+001C to U+001F.
SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
ATTEMPT = "a copy of the file, or training the tokenizer again"  # for one that was damaged
_SPACE_RUN = re.compile(f"[{SPACES}]+")


class SpecialIds(NamedTuple):
    """The ids that stand for no text: padding, begin and end of a sentence, what is unknown; here those of our own."""

    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    unk_id: int = 3


OWN_IDS = SpecialIds()


class Tokenizer:
    """A sub-word vocabulary with `encode_batch` and `decode`, made by `Tokenizer.train` or `Tokenizer.load`.

    Ids: `<pad>` 0, `<s>` 1, `</s>` 2, `<unk>` 3, the 256 bytes, then the pieces in the order in which they were
    learned.  `encode_batch` adds no special id, and a special token's name inside the text is text like any other.
    """

    def __init__(self, spec: dict[str, Any], name: str = "tokenizer.json") -> None:
        """Wrap the content of a `tokenizer.json`, called `name` in messages; raise `UserError` if it cannot serve."""
        try:
            # What would make encoding random or ragged in a foreign file is switched off.
            spec = {**spec, "truncation": None, "padding": None, "model": {**spec["model"]}}
            if spec["model"].get("dropout"):
                spec["model"]["dropout"] = None
            engine = HuggingFaceTokenizer.from_str(json.dumps(spec))
            engine.encode_special_tokens = True  # "</s>" in the text is text
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # a panic inside the library is no Exception
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"{name}: expected a Hugging Face tokenizer.json; got '{reason}'; try {ATTEMPT}") from None
        ids = [engine.token_to_id(piece) for piece in SPECIALS]
        known = [i for i in ids if i is not None]
        if len({*known}) < len(SPECIALS):
            raise UserError(
                f"{name}: expected {', '.join(SPECIALS)}, each with an id of its own; "
                f"got {', '.join('none' if i is None else str(i) for i in ids)}; try one trained by this program"
            )
        vocabulary = engine.get_vocab(with_added_tokens=True)
        if sorted(vocabulary.values()) != list(range(len(vocabulary))):
            raise UserError(
                f"{name}: expected ids 0 to {len(vocabulary) - 1} once each; got gaps or repeated ids; try {ATTEMPT}"
            )
        self._spec, self._name = spec, name
        self._engine = engine
        self.special = SpecialIds(*known)
        self.pad_id, self.bos_id, self.eos_id, _ = self.special
        self.vocab_size = len(vocabulary)
        self.n_outputs = self.vocab_size  # the ids below it are those that a model may write
        canonical = json.dumps(spec, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        self.digest = hashlib.sha256(canonical.encode()).hexdigest()

    @classmethod
    def train(
        cls,
        paths: Iterable[str | PathLike[str]],
        kind: str = "bpe",
        vocab_size: int = 37000,
        pretokenizer: str = "words",
        parallel: bool = False,
    ) -> "Tokenizer":
        """Learn one vocabulary of at most `vocab_size` pieces (specials and bytes included) on all the files together.

        A pair of pieces seen once is no piece, so a small text gives fewer.  The same text gives the same tokenizer.
        Raises `UserError` for an unknown kind or pretokenizer, a vocabulary below 260, an unreadable file and, where
        the files are `parallel`, for unequal numbers of lines.
        """
        paths = [paths] if isinstance(paths, str | PathLike) else list(paths)
        lines = chain.from_iterable(read_parallel(*paths) if parallel else map(read_lines, paths))
        return cls(cls.learned(lines, kind, vocab_size, pretokenizer))

    @staticmethod
    def learned(lines: Iterable[list[str]], kind: str, vocab_size: int, pretokenizer: str) -> dict[str, Any]:
        """`train` on lines, a part of them at a time: the content of the tokenizer.json."""
        choice("tokenizer", kind, KINDS)
        choice("pretokenizer", pretokenizer, PRETOKENIZERS)
        squeeze = normalizers.Replace(Regex(f"[{SPACES}]+"), " ")
        normalizer = normalizers.Sequence([squeeze, normalizers.Strip(), normalizers.Prepend(" ")])
        pieces = pieces_of_bytes(PRETOKENIZERS[pretokenizer])
        model = byte_pairs(lines, vocab_size, normalizer, pieces)
        if kind == "wordpiece":
            flags = {"continuing_subword_prefix": "", "max_input_chars_per_word": 1000}
            model = {"type": "WordPiece", **flags, "unk_token": model["unk_token"], "vocab": model["vocab"]}
        decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
        return tokenizer_spec(model, normalizer, pieces, decoder)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Tokenizer":
        """Read a `tokenizer.json`.  Raises `UserError` for a missing or damaged one, or one without our special ids."""
        spec = read_json(path, "a Hugging Face tokenizer.json", ATTEMPT)
        if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
            raise UserError(
                f"{path}: expected a Hugging Face tokenizer.json; got JSON without a 'model'; try another file"
            )
        return cls(spec, str(path))

    def save(self, path: str | PathLike[str]) -> None:
        """Write a `tokenizer.json` in the format of Hugging Face `tokenizers`; equal tokenizers give equal bytes."""
        write_text(path, json.dumps(self._spec, ensure_ascii=False, indent=1) + "\n")

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without special ids; in parallel where the machine has cores, with the same result.

        Raises `UserError` for a text with lone surrogates, which is how Python passes on bytes that are no UTF-8.
        """
        try:
            encodings = self._ask(self._engine.encode_batch_fast, list(texts), add_special_tokens=False)
        except TypeError:
            for number, text in enumerate(texts, 1):
                if any("\ud800" <= c <= "\udfff" for c in text):
                    raise UserError(
                        f"text {number}: expected UTF-8; got bytes that are none; try converting it (iconv -t UTF-8)"
                    ) from None
            raise
        return [encoding.ids for encoding in encodings]

    def encode(self, text: str) -> list[int]:
        """Ids of one text, without special ids."""
        return self.encode_batch([text])[0]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of a sequence of ids in one line: special ids are left out, bytes that are no UTF-8 become U+FFFD."""
        return self.decode_batch([ids])[0]

    def decode_batch(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Text of each sequence of ids, as `decode`."""
        plain = [[int(i) for i in ids] for ids in sequences]
        return [normalize(text) for text in self._ask(self._engine.decode_batch, plain, skip_special_tokens=True)]

    def _ask(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """What the library gives; UserError where it fails, as it does for some foreign files only when it is used."""
        try:
            return call(*arguments, **named)
        except (KeyboardInterrupt, SystemExit, MemoryError, TypeError):
            raise
        except BaseException as error:  # a panic inside the library is no Exception
            raise UserError(
                f"{self._name}: expected a tokenizer that works; got '{one_line(error)[:200]}'; try {ATTEMPT}"
            ) from None


def normalize(text: str) -> str:
    """Text with each run of white space made one space and none at the ends: what encoding and decoding give back."""
    return _SPACE_RUN.sub(" ", text).strip(" ")


def pieces_of_bytes(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Cuts text where `pattern` matches, and spells each cut in bytes."""
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), in_bytes])


def byte_pairs(lines: Iterable[list[str]], vocab_size: int, normalizer: Any, pieces: Any) -> dict[str, Any]:
    """The model of a `tokenizer.json` that byte-pair encoding learns: specials, bytes in order, pieces as learned.

    Raises `UserError` for a vocabulary below 260.
    """
    if vocab_size < SMALLEST:
        raise UserError(
            f"data.vocab_size: expected at least {SMALLEST}, {len(SPECIALS)} special types and {len(ALPHABET)} bytes; "
            f"got {vocab_size}; try 4000 or more"
        )
    engine = HuggingFaceTokenizer(models.BPE())
    engine.pre_tokenizer = pieces
    if normalizer is not None:
        engine.normalizer = normalizer
    # Without word prefixes or suffixes this trainer breaks ties by ids that follow from the text alone (a test
    # compares it with a plain loop); the library's WordPiece trainer numbers its "##" pieces in the order of a
    # random hash.
    settings = {"vocab_size": vocab_size - len(SPECIALS), "min_frequency": 2, "initial_alphabet": ALPHABET}
    merges = _merges(json.loads(engine.to_str()), settings, lines)
    vocabulary = {piece: i for i, piece in enumerate((*SPECIALS, *ALPHABET))}
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    none = dict.fromkeys(("dropout", "continuing_subword_prefix", "end_of_word_suffix"))
    flags = dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False)
    unknown = SPECIALS[OWN_IDS.unk_id]
    return {"type": "BPE", **none, **flags, "unk_token": unknown, "vocab": vocabulary, "merges": merges}


def _merges(spec: dict[str, Any], settings: dict[str, Any], lines: Iterable[list[str]]) -> list[Any]:
    """Train byte pairs in a separate process (bpe_process.py).

    Of its own, because native code that runs for minutes looks for no Ctrl-C, and ends the process that has no memory
    left; and its memory, 1.6 KB a distinct word, is given back.
    """
    program, pipe = [sys.executable, "-I", str(Path(__file__).with_name("bpe_process.py"))], subprocess.PIPE
    with subprocess.Popen(
        program, stdin=pipe, stdout=pipe, stderr=pipe, encoding="utf-8", start_new_session=True
    ) as learner:
        assert learner.stdin and learner.stdout and learner.stderr
        try:
            with suppress(BrokenPipeError):  # it has ended, and its answer will be none
                for asked in chain((spec, settings), lines, (None,)):
                    learner.stdin.write(json.dumps(asked) + "\n")
                learner.stdin.flush()
            if answer := learner.stdout.readline():
                merges: list[Any] = json.loads(answer)
                return merges
            with suppress(BrokenPipeError):
                learner.stdin.close()
            error = learner.stderr.read()
        except BaseException:
            learner.kill()
            raise
    if learner.returncode > 0 and "MemoryError" not in error:
        raise RuntimeError(f"learner.py: {error}")
    raise UserError(
        "vocabulary: expected memory to learn it, about 1.6 KB a distinct word; got "
        f"'{one_line(error)[:99] or 'Killed'}'; try fewer lines (data own --learn-from N), or more memory"
    )


def tokenizer_spec(model: dict[str, Any], normalizer: Any, pieces: Any, decoder: Any) -> dict[str, Any]:
    """Content of a `tokenizer.json`."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": piece, **flags} for i, piece in enumerate(SPECIALS)],
        "normalizer": normalizer and json.loads(normalizer.__getstate__()),
        "pre_tokenizer": json.loads(pieces.__getstate__()),
        "post_processor": None,
        "decoder": json.loads(decoder.__getstate__()),
        "model": model,
    }


def choice(key: str, value: str, choices: Iterable[str]) -> None:
    """UserError unless a value is one of the choices of a key."""
    if value not in choices:
        raise UserError(f"{key}: expected one of {', '.join(choices)}; got '{value}'; try '{next(iter(choices))}'")
