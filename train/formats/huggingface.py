"""Read Hugging Face folders, and write run folders."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import npx
from models import TransformerConfig
from npx.registry import Registry
from train.errors import UserError, one_line
from train.files import open_for_reading
from train.formats import marian
from train.formats.settings import TRY_SUPPORTED, check_vocab_size, read_object
from train.formats.weights import read_weights
from train.run.checkpoint import MODEL
from train.run.config import RunConfig
from train.run.folder import RunFolder
from train.run.storage import write_folder
from train.tasks.protocols import TextTokenizer
from train.text.pair_tokenizer import PairTokenizer
from train.text.sentencepiece_tokenizer import SentencePieceTokenizer
from train.text.tokenizer import SpecialIds, Tokenizer

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer.json"
TOKENIZER_CONFIG, VOCABULARY, TARGET_VOCABULARY = "tokenizer_config.json", "vocab.json", "target_vocab.json"
SENTENCEPIECE = "source.spm", "target.spm"
UNKNOWN = "<unk>"
# Generation settings that our search does not support, with the values that disable them.
UNSUPPORTED_SETTINGS: Mapping[str, Any] = {
    "no_repeat_ngram_size": 0, "repetition_penalty": 1.0, "min_length": 0, "forced_bos_token_id": None,
    "do_sample": False, "num_beam_groups": 1, "diversity_penalty": 0.0, "renormalize_logits": False,
    "min_new_tokens": 0, "begin_suppress_tokens": [], "forced_decoder_ids": [], "sequence_bias": [],
    "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0, "exponential_decay_length_penalty": None,
}  # fmt: skip


class ImportedModel(NamedTuple):
    """An imported model.

    Attributes:
        tables: the keys of [model], [data] and [search] for its run.
        source_keys: maps some of these keys, such as (search, beam_size), to their file and key in the folder.
    """

    model_config: TransformerConfig
    tables: dict[str, dict[str, Any]]
    source_keys: dict[tuple[str, str], tuple[Path, str]]
    tokenizer: Any
    parameters: Mapping[str, Any]


# A function that reads a folder; its arguments are the folder, config.json, generation settings and on_warning.
Reader = Callable[[Path, Mapping[str, Any], Mapping[str, Any], Callable[[str], object]], ImportedModel]
READERS: Registry[Reader] = Registry("model_type")


def generation_file(folder: Path) -> Path:
    """Return the file with the generation settings. In older folders, it is config.json, which has all settings."""
    return folder / GENERATION if (folder / GENERATION).exists() else folder / CONFIG


def make_model_config(
    path: Path,
    tokenizer: TextTokenizer,
    keys: Mapping[str, Any],
    generation_config: Mapping[str, Any],
    names: Mapping[str, str],
) -> Any:
    """Return the model's configuration for the [model] `keys`; `names` maps our keys to those of the file.

    Raises UserError for an invalid configuration.
    """
    special: dict[str, Any] = {
        "pad_id": tokenizer.pad_id, "bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id,
        "src_vocab_size": getattr(tokenizer, "src_vocab_size", None),
        "suppressed_ids": suppressed_ids(generation_config, tokenizer, generation_file(path.parent)),
    }  # fmt: skip
    try:
        return TransformerConfig(vocab_size=tokenizer.vocab_size, **special, **keys)
    except ValueError as error:
        key, _, problem = one_line(error).partition(": ")
        suggestion = "" if "; try " in problem else f"; {TRY_SUPPORTED}"
        raise UserError(f"{path}: {names.get(key, key)}: {problem}{suggestion}") from None


@READERS.register("marian")
def read_marian(
    folder: Path, config: Mapping[str, Any], generation_config: Mapping[str, Any], on_warning: Callable[[str], object]
) -> ImportedModel:
    """Read a MarianMT folder."""
    keys = marian.read_config(config, str(folder / CONFIG))
    tokenizer = read_tokenizer(folder, config)
    weights = read_weights(folder)
    keys |= marian.read_positions(weights) | {"decoder_start": "pad"}
    keys = {name: value for name, value in keys.items() if value is not None}
    model_config = make_model_config(folder / CONFIG, tokenizer, keys, generation_config, marian.NAMES)
    vocabularies = "shared" if model_config.src_vocab_size is None else "separate"
    file = generation_file(folder)
    search = search_settings(generation_config, file, on_warning)
    tables = {"model": keys, "data": {"vocabularies": vocabularies}, "search": search}
    source_keys = {
        ("search", "beam_size"): (file, "num_beams"),
        ("search", "length_penalty"): (file, "length_penalty"),
    }
    parameters = marian.from_marian(weights, model_config, str(folder))
    return ImportedModel(model_config, tables, source_keys, tokenizer, parameters)


def write_run(
    run: RunFolder,
    config: RunConfig,
    model_config: TransformerConfig,
    tokenizer: TextTokenizer,
    parameters: Mapping[str, npx.Array],
) -> None:
    """Write a new run folder with one checkpoint, step-0, which has weights but no optimizer state."""
    state = {"step": 0, "model": model_config.to_dict(), "tokenizer_digest": tokenizer.digest, "task": config.data.task}
    with run.creating(resume=False, program="import"):
        run.prepare(config, tokenizer)
        write_folder(run.step_path(0), {MODEL: parameters}, state | {"config": config.fixed_keys()})
        run.commit()


def read_tokenizer(folder: Path, config: Mapping[str, Any]) -> PairTokenizer | Tokenizer:
    """Return the tokenizer of a folder. Raises UserError if the tokenizer does not fit config.json."""
    pad, eos = (special_id(config, name, folder) for name in ("pad_token_id", "eos_token_id"))
    if (start := config.get("decoder_start_token_id", pad)) != pad:
        raise UserError(
            f"{folder / CONFIG}: decoder_start_token_id: expected {pad}, the value of pad_token_id; "
            f"got {start!r}; {TRY_SUPPORTED}"
        )
    if (folder / SENTENCEPIECE[0]).exists() or not (folder / TOKENIZER).exists():
        tokenizer: PairTokenizer | Tokenizer = read_sentencepiece(folder, pad, eos)
    else:
        tokenizer = Tokenizer.load(folder / TOKENIZER)
        if (tokenizer.pad_id, tokenizer.eos_id) != (pad, eos):
            got = f"{tokenizer.pad_id} and {tokenizer.eos_id}"
            raise UserError(
                f"{folder / TOKENIZER}: expected the ids {pad} for <pad> and {eos} for </s>, as in {CONFIG}; "
                f"got {got}; try files that all come from the same model"
            )
    source = config.get("vocab_size")
    target = config.get("decoder_vocab_size") or source
    check_vocab_size(folder, "vocab_size", source, tokenizer.source.vocab_size)
    check_vocab_size(folder, "decoder_vocab_size", target, tokenizer.target.vocab_size)
    return tokenizer


def read_sentencepiece(folder: Path, pad: int, eos: int) -> PairTokenizer:
    """Return the tokenizer of source.spm and target.spm, with one vocabulary or two.

    Raises UserError for a damaged file.
    """
    tokenizer_config = read_object(folder / TOKENIZER_CONFIG, is_optional=True)
    is_separate = tokenizer_config.get("separate_vocabs") is True
    files = VOCABULARY, TARGET_VOCABULARY if is_separate else VOCABULARY
    sides = []
    for model, file in zip(SENTENCEPIECE, files, strict=True):
        with open_for_reading(folder / model, "a SentencePiece model") as spm:
            content = spm.read()
        vocabulary = read_object(folder / file)
        if UNKNOWN not in vocabulary:
            raise UserError(
                f"{folder / file}: expected a vocabulary with {UNKNOWN}; this token is missing; try a new download"
            )
        special_ids = SpecialIds(pad, pad, eos, vocabulary[UNKNOWN])
        sides.append(SentencePieceTokenizer(content, vocabulary, special_ids, str(folder / model)))
    source, target = sides
    return PairTokenizer(source, target, str(folder), shared=not is_separate)


def special_id(config: Mapping[str, Any], name: str, folder: Path) -> int:
    """Return the id of a special token. Raises UserError if the id is missing."""
    value = config.get(name)
    if type(value) is not int:
        raise UserError(f"{folder / CONFIG}: {name}: expected a single token id; got {value!r}; try a new download")
    return value


def suppressed_ids(generation_config: Mapping[str, Any], tokenizer: TextTokenizer, path: Path) -> tuple[int, ...]:
    """Return the ids in bad_words_ids and suppress_tokens, except those of tokens that a search never chooses.

    Raises UserError for a sequence of several tokens, which our search cannot forbid, and for an id that is not in the
    vocabulary or ends a text.
    """
    ids: list[int] = []
    for name in ("bad_words_ids", "suppress_tokens"):
        value = generation_config.get(name) or []
        entries: list[Any] = value if isinstance(value, list) else [None]
        if name == "bad_words_ids":  # a list of sequences
            entries = [entry[0] if isinstance(entry, list) and len(entry) == 1 else None for entry in entries]
        if not all(
            type(entry) is int and 0 <= entry < tokenizer.vocab_size and entry != tokenizer.eos_id for entry in entries
        ):
            got = one_line(repr(value))[:60]
            ids_in_range = f"from 0 to {tokenizer.vocab_size - 1}"
            expected = f"single token ids {ids_in_range} other than eos_token_id = {tokenizer.eos_id}"
            raise UserError(f"{path}: {name}: expected {expected}; got {got}; try removing this setting")
        ids += entries
    never_chosen = {tokenizer.pad_id, tokenizer.bos_id}
    return tuple(i for i in dict.fromkeys(ids) if i not in never_chosen)


def warn_of_settings(generation_config: Mapping[str, Any], path: Path, on_warning: Callable[[str], object]) -> None:
    """Warn about generation settings that our search does not support."""
    for name, disabled in UNSUPPORTED_SETTINGS.items():
        if generation_config.get(name) not in (None, disabled):
            on_warning(f"{path}: {name} = {generation_config[name]!r} is not imported")


def search_settings(
    generation_config: Mapping[str, Any], path: Path, on_warning: Callable[[str], object]
) -> dict[str, Any]:
    """Return the [search] table that makes our search equivalent to transformers' with these generation settings."""
    warn_of_settings(generation_config, path, on_warning)
    beam = generation_config.get("num_beams") or 1
    exponent = generation_config.get("length_penalty")
    rule = "fairseq" if generation_config.get("early_stopping") is True else "transformers"
    return {
        "beam_size": beam, "length_penalty": 1.0 if exponent is None else exponent, "length_penalty_type": "length",
        "candidate_rule": "plain" if beam == 1 else rule,  # with one beam, transformers searches greedily
    }  # fmt: skip
