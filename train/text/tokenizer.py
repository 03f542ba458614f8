r"""Text to token ids and back: a joint subword vocabulary trained on the training text (section 5.1 of the paper).

Each run of whitespace becomes one space. The text is split into words, each with the space before it; a word is
spelled in UTF-8 bytes (one printable character per byte, "Ġ" for a space) and segmented into subwords:

    bpe        byte-pair encoding: repeatedly apply the merge that was learned first               (EN-DE in the paper)
    wordpiece  greedy: take the longest subword that is a prefix of the remaining word, repeatedly

All 256 bytes are in the vocabulary, so any text can be encoded and `decode(encode(text))` is the normalized text. Both
kinds are trained by the byte-pair trainer of Hugging Face `tokenizers`, and the result is a standard `tokenizer.json`.
The entries of the file have a fixed order, so the same text always gives the same bytes.

For EN-FR, the paper uses the word-pieces of Wu et al. (2016), which are chosen to maximize the likelihood of the text.
`wordpiece` segments text greedily, as they do, but does not use their training algorithm: its subwords come from
byte-pair merges.
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
from typing import Any, NamedTuple, Self

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HuggingFaceTokenizer

from train.errors import TO_UTF8, UserError, check_choice, one_line
from train.files import write_text
from train.json_files import read_json
from train.text.lines import read_lines, read_parallel

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
KINDS = ("bpe", "wordpiece")
# Words are cut at 100 characters because longest-match segmentation takes cubic time in a word's length. "<" is always
# separated from letters, so no subword can be spelled like a special token.
PRETOKENIZERS = {
    "words": r" ?[\p{L}\p{M}]{1,100}| ?\p{N}{1,100}| ?[^\s\p{L}\p{M}\p{N}]{1,100}",  # letters, digits, symbols
    "whitespace": r" ?(?:<|[^\s<]{1,100})",  # for text that is already tokenized
}
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())  # 256 characters, one per byte
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that ByteLevel spells as themselves
BYTES = dict(zip(map(chr, _PRINTABLE), _PRINTABLE, strict=True)) | {
    chr(256 + n): byte for n, byte in enumerate(x for x in range(256) if x not in _PRINTABLE)
}  # character of ALPHABET -> its byte
MIN_VOCAB_SIZE = len(SPECIALS) + len(ALPHABET)
# Unicode's White_Space, spelled out because Python's \s also matches U+001C to U+001F.
SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
SPACE = "\u2581"  # the symbol for a space in a subword, as SentencePiece writes it
SPECIAL_IDS = "special_ids"  # key in an imported tokenizer.json, where special tokens have other names
REMEDY = "copying the file again, or training the tokenizer again"  # for a damaged file
_SPACE_RUN = re.compile(f"[{SPACES}]+")


class SpecialIds(NamedTuple):
    """Ids of the padding, beginning-of-sentence, end-of-sentence and unknown tokens; `train` uses the defaults."""

    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    unk_id: int = 3


DEFAULT_IDS = SpecialIds()


class Tokenizer:
    """A subword vocabulary with `encode_batch` and `decode`, created by `Tokenizer.train` or `Tokenizer.load`.

    Ids: `<pad>` 0, `<s>` 1, `</s>` 2, `<unk>` 3, the 256 bytes, then the subwords in the order in which they were
    learned. `encode_batch` adds no special ids, and treats the name of a special token in a text as ordinary text.

    Attributes:
        special_ids: the special ids, also available as `pad_id`, `bos_id` and `eos_id`.
        vocab_size: number of ids.
        n_outputs: a decoder predicts only ids below this number.
        digest: SHA-256 of the content, in hexadecimal.
    """

    src_vocab_size: int | None = None  # the source has no separate vocabulary (see pair_tokenizer.py)

    def __init__(self, spec: dict[str, Any], name: str = "tokenizer.json") -> None:
        """Wrap the content of a `tokenizer.json`.

        Args:
            spec: the parsed JSON.
            name: name of the file in error messages.

        Raises UserError if the library rejects `spec`, if a special token is missing, or if the ids are not 0 to n - 1.
        """
        try:
            # Disable settings in files of other programs that would make encoding random or change its length.
            spec = {**spec, "truncation": None, "padding": None, "model": {**spec["model"]}}
            if spec["model"].get("dropout"):
                spec["model"]["dropout"] = None
            engine = HuggingFaceTokenizer.from_str(json.dumps({k: v for k, v in spec.items() if k != SPECIAL_IDS}))
            engine.encode_special_tokens = True  # treat "</s>" in the text as text
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # a panic in the library is not an Exception
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"{name}: expected a Hugging Face tokenizer.json; got '{reason}'; try {REMEDY}") from None
        ids = spec.get(SPECIAL_IDS) or [engine.token_to_id(token) for token in SPECIALS]
        special_ids = [i for i in ids if i is not None]
        if len({*special_ids}) < len(SPECIALS):
            raise UserError(
                f"{name}: expected distinct ids for {', '.join(SPECIALS)}; "
                f"got {', '.join('no id' if i is None else str(i) for i in ids)}; try a tokenizer trained by "
                f"this program"
            )
        vocabulary = engine.get_vocab(with_added_tokens=True)
        if sorted(vocabulary.values()) != list(range(len(vocabulary))):
            raise UserError(
                f"{name}: expected each id from 0 to {len(vocabulary) - 1} once; got missing or repeated ids; "
                f"try {REMEDY}"
            )
        self._spec, self._name = spec, name
        self._engine = engine
        self.special_ids = SpecialIds(*special_ids)
        self.pad_id, self.bos_id, self.eos_id, _ = self.special_ids
        self.vocab_size = len(vocabulary)
        self.n_outputs = self.vocab_size
        canonical = json.dumps(spec, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        self.digest = hashlib.sha256(canonical.encode()).hexdigest()

    @classmethod
    def train(
        cls,
        paths: str | PathLike[str] | Iterable[str | PathLike[str]],
        kind: str = "bpe",
        vocab_size: int = 37000,
        pretokenizer: str = "words",
        parallel: bool = False,
    ) -> Self:
        """Train one vocabulary on all the files together. The same text gives the same tokenizer.

        Args:
            paths: one or more UTF-8 text files.
            kind: "bpe" or "wordpiece".
            vocab_size: maximum number of tokens, at least 260, including special tokens and bytes. A small text gives
                fewer, because a pair of subwords that occurs only once is not merged.
            pretokenizer: "words", or "whitespace" for text that is already tokenized.
            parallel: whether the files are translations of each other and must have equal numbers of lines.

        Raises UserError for an invalid argument, an unreadable file or unequal numbers of lines.
        """
        paths = [paths] if isinstance(paths, str | PathLike) else list(paths)
        lines = chain.from_iterable(read_parallel(*paths) if parallel else map(read_lines, paths))
        return cls(cls.train_spec(lines, kind, vocab_size, pretokenizer))

    @staticmethod
    def train_spec(lines: Iterable[list[str]], kind: str, vocab_size: int, pretokenizer: str) -> dict[str, Any]:
        """Train on chunks of lines and return the content of a tokenizer.json (arguments as for `train`)."""
        check_choice("tokenizer", kind, KINDS)
        check_choice("pretokenizer", pretokenizer, PRETOKENIZERS)
        single_spaces = normalizers.Replace(Regex(f"[{SPACES}]+"), " ")
        normalizer = normalizers.Sequence([single_spaces, normalizers.Strip(), normalizers.Prepend(" ")])
        byte_words = byte_pretokenizer(PRETOKENIZERS[pretokenizer])
        model = train_bpe(lines, vocab_size, normalizer, byte_words)
        if kind == "wordpiece":
            flags = {"continuing_subword_prefix": "", "max_input_chars_per_word": 1000}
            model = {"type": "WordPiece", **flags, "unk_token": model["unk_token"], "vocab": model["vocab"]}
        decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
        return tokenizer_spec(model, normalizer, byte_words, decoder)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read a `tokenizer.json`; raise UserError if it is missing or damaged, or lacks the special tokens."""
        return cls.from_content(read_spec(path), path)

    @classmethod
    def from_content(cls, spec: Any, path: str | PathLike[str]) -> Self:
        """Wrap the parsed JSON of the file at `path`; raise UserError if it is not a tokenizer."""
        if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
            raise UserError(
                f"{path}: expected a Hugging Face tokenizer.json; got JSON without 'model'; try tokenizer.json of a run"
            )
        return cls(spec, str(path))

    def save(self, path: str | PathLike[str]) -> None:
        """Write a `tokenizer.json` in the format of Hugging Face `tokenizers`; equal tokenizers give equal bytes."""
        write_text(path, json.dumps(self.spec, ensure_ascii=False, indent=1) + "\n")

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without special ids. The texts are encoded in parallel on several cores.

        Raises UserError for a text with lone surrogates, which stand for invalid UTF-8 in Python.
        """
        try:
            encodings = self._call(self._engine.encode_batch_fast, list(texts), add_special_tokens=False)
        except TypeError:
            check_surrogates(texts)
            raise
        return [encoding.ids for encoding in encodings]

    def encode_words(self, texts: Sequence[str]) -> list[tuple[list[int], list[int | None]]]:
        """Return, for each text, the token ids and the number of each token's word."""
        encodings = self._call(self._engine.encode_batch, list(texts), add_special_tokens=False)
        return [(encoding.ids, encoding.word_ids) for encoding in encodings]

    @property
    def source(self) -> Self:
        """The tokenizer of the source: this one, because both sides share one vocabulary."""
        return self

    target = source

    @property
    def spec(self) -> dict[str, Any]:
        """The content of the tokenizer.json."""
        return self._spec

    def encode(self, text: str) -> list[int]:
        """Return the ids of one text, without special ids."""
        return self.encode_batch([text])[0]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a sequence of ids without special ids; invalid UTF-8 becomes U+FFFD."""
        return self.decode_batch([ids])[0]

    def decode_batch(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each sequence of ids (see `decode`)."""
        ids = [[int(i) for i in sequence] for sequence in sequences]
        return [normalize(text) for text in self._call(self._engine.decode_batch, ids, skip_special_tokens=True)]

    def subwords(self, ids: Sequence[int]) -> list[str]:
        """Return each id as text, with SPACE for a space; an incomplete character becomes U+FFFD."""
        spellings = [self._engine.id_to_token(int(i)) or "" for i in ids]
        return [x if x in SPECIALS else decoders.ByteLevel().decode([x]).replace(" ", SPACE) for x in spellings]

    def spelling(self, token_id: int) -> str:
        """Return one token as the vocabulary spells it.

        A space is shown as a visible symbol, and bytes that are not valid text are shown as in <0xC3>.
        """
        token = self._engine.id_to_token(int(token_id)) or ""
        data = bytes(BYTES[x] for x in token) if BYTES.keys() >= {*token} else token.encode()
        return "".join(
            x if x.isprintable() else "".join(f"<0x{byte:02X}>" for byte in x.encode(errors="surrogateescape"))
            for x in data.decode(errors="surrogateescape").replace(" ", "\u2423")
        )

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the library; raise UserError if it fails, because some invalid files fail only when used."""
        try:
            return method(*args, **kwargs)
        except (KeyboardInterrupt, SystemExit, MemoryError, TypeError):
            raise
        except BaseException as error:  # a panic in the library is not an Exception
            raise UserError(
                f"{self._name}: expected a working tokenizer; got '{one_line(error)[:200]}'; try {REMEDY}"
            ) from None


def read_spec(path: str | PathLike[str]) -> Any:
    """Return the content of a tokenizer.json. Raises UserError if it is damaged, or a SentencePiece model."""

    def reject_sentencepiece(raw: bytes) -> None:
        if re.match(rb"\n.\n.<[/\w]+>\x15", raw, re.DOTALL):  # a special token and its score
            raise UserError(
                f"{path}: expected a Hugging Face tokenizer.json; got a SentencePiece model, which only `import` "
                "reads, as part of a model; try data.tokenizer=bpe, which trains a new tokenizer"
            )

    return read_json(path, "a Hugging Face tokenizer.json", REMEDY, reject_sentencepiece)


def check_surrogates(texts: Iterable[str]) -> None:
    """Raise UserError for a text with lone surrogates, which stand for invalid UTF-8 in Python."""
    for number, text in enumerate(texts, 1):
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise UserError(f"text {number}: expected UTF-8; got invalid bytes; try {TO_UTF8}")


def normalize(text: str) -> str:
    """Return the text as decoding restores it: each run of whitespace becomes one space, with none at the ends."""
    return _SPACE_RUN.sub(" ", text).strip(" ")


def byte_pretokenizer(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Return a pretokenizer that splits text into the matches of `pattern` and spells each in bytes."""
    spell_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), spell_bytes])


def train_bpe(lines: Iterable[list[str]], vocab_size: int, normalizer: Any, pretokenizer: Any) -> dict[str, Any]:
    """Train byte-pair encoding and return the model of a `tokenizer.json`: special tokens, bytes, subwords.

    Raises UserError for a vocabulary of fewer than 260 tokens.
    """
    if vocab_size < MIN_VOCAB_SIZE:
        raise UserError(
            f"data.vocab_size: expected at least {MIN_VOCAB_SIZE} ({len(SPECIALS)} special tokens and "
            f"{len(ALPHABET)} bytes); got {vocab_size}; try 4000 or more"
        )
    engine = HuggingFaceTokenizer(models.BPE())
    engine.pre_tokenizer = pretokenizer
    if normalizer is not None:
        engine.normalizer = normalizer
    # Without word prefixes or suffixes, this trainer breaks ties by ids that depend only on the text (a test compares
    # it with a plain loop). The library's WordPiece trainer orders its "##" subwords by a random hash.
    settings = {"vocab_size": vocab_size - len(SPECIALS), "min_frequency": 2, "initial_alphabet": ALPHABET}
    merges = _train_merges(json.loads(engine.to_str()), settings, lines)
    vocabulary = {token: i for i, token in enumerate((*SPECIALS, *ALPHABET))}
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    unset = dict.fromkeys(("dropout", "continuing_subword_prefix", "end_of_word_suffix"))
    flags = dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False)
    unknown = SPECIALS[DEFAULT_IDS.unk_id]
    return {"type": "BPE", **unset, **flags, "unk_token": unknown, "vocab": vocabulary, "merges": merges}


def _train_merges(spec: dict[str, Any], settings: dict[str, Any], lines: Iterable[list[str]]) -> list[Any]:
    """Train byte-pair encoding in a separate process (bpe_process.py) and return the merges.

    The native trainer runs for minutes, ignores Ctrl-C, and is killed when memory runs out. A separate process protects
    the caller from these effects and releases the memory (1.6 KB per distinct word) at the end.
    """
    program = [sys.executable, "-I", str(Path(__file__).with_name("bpe_process.py"))]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        program, stdin=pipe, stdout=pipe, stderr=pipe, encoding="utf-8", start_new_session=True
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        try:
            with suppress(BrokenPipeError):  # the process has died, so it sends no answer
                for message in chain((spec, settings), lines, (None,)):
                    process.stdin.write(json.dumps(message) + "\n")
                process.stdin.flush()
            if answer := process.stdout.readline():
                merges: list[Any] = json.loads(answer)
                return merges
            with suppress(BrokenPipeError):
                process.stdin.close()
            error = process.stderr.read()
        except BaseException:
            process.kill()
            # If `Popen.__exit__` closed stdin, a BrokenPipeError would replace this exception.
            with suppress(BrokenPipeError):
                process.stdin.close()
            raise
    # the second and third patterns match messages of the dynamic linker
    if process.returncode > 0 and not re.search("MemoryError|annot (map|allocate)|failed to map", error):
        raise RuntimeError(f"bpe_process.py: {error}")
    raise UserError(
        "not enough memory to train the vocabulary (about 1.6 KB per distinct word); the trainer ended with "
        f"'{one_line(error)[:99] or 'Killed'}'; try fewer lines (`data own --tokenizer-lines N`), or more memory"
    )


def tokenizer_spec(model: dict[str, Any], normalizer: Any, pretokenizer: Any, decoder: Any) -> dict[str, Any]:
    """Return the content of a `tokenizer.json`."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token, **flags} for i, token in enumerate(SPECIALS)],
        "normalizer": normalizer and json.loads(normalizer.__getstate__()),
        "pre_tokenizer": json.loads(pretokenizer.__getstate__()),
        "post_processor": None,
        "decoder": json.loads(decoder.__getstate__()),
        "model": model,
    }
