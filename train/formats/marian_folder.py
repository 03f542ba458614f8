"""Export to the MarianMT format of Hugging Face, which transformers and CTranslate2's converter read."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from models import TransformerConfig
from train.errors import UserError
from train.formats import marian
from train.formats.export import WRITERS, check_supported, unsupported_fields, weights_of, write_json, write_tensors
from train.formats.gpt2 import write_gpt2
from train.formats.huggingface import (
    CONFIG,
    GENERATION,
    SENTENCEPIECE,
    TARGET_VOCABULARY,
    TOKENIZER,
    TOKENIZER_CONFIG,
    VOCABULARY,
)
from train.formats.settings import ACTIVATIONS
from train.formats.weights import SAFETENSORS
from train.run.config import RunConfig
from train.text.pair_tokenizer import PairTokenizer
from train.text.sentencepiece_tokenizer import SentencePieceTokenizer
from train.text.tokenizer import SPECIALS, Tokenizer

MAX_POSITIONS = 1024  # sinusoids have no maximum length, but the format requires one
# Maximum epsilon of the norms that can be exported: transformers always uses 1e-5, so the error is at most 1e-5.
MAX_EPSILON = 2e-5
PADDING_BIAS = -1e4  # output bias that prevents the prediction of padding; within the range of float16


class MarianModel(NamedTuple):
    """A model as Marian tensors.

    Attributes:
        our_ids: our ids of all tokens, in the order of Marian's ids.
        vocabularies: the subwords of the source and those of the target, in the order of Marian's ids.
    """

    tensors: dict[str, Any]
    our_ids: Any
    vocabularies: tuple[list[str], list[str]]
    pad_id: int
    n_positions: int

    def marian_id(self, our_id: int) -> int:
        """Return Marian's id for one of our ids."""
        return int(np.flatnonzero(self.our_ids == our_id)[0])


def check_model(config: TransformerConfig, format_name: str, norms: tuple[str, ...] = ("post",)) -> None:
    """Raise UserError, naming the key, for a model that Marian's architecture cannot represent."""
    allowed: dict[str, tuple[Any, ...]] = {
        "norm_placement": norms,
        "activation": tuple(dict.fromkeys(ACTIVATIONS.values())),
        "positions": ("sinusoidal", "sinusoidal_halves", "learned"),
        "output_bias": (False, True),
    }
    if format_name == "ctranslate2":  # it derives the size of a head from the matrices
        allowed["n_heads"] = (config.n_heads,)
    lacks_only_pre = not any(unsupported_fields(config, {**allowed, "norm_placement": ("pre",)}))
    suggestion = "--to ctranslate2, or --to safetensors" if lacks_only_pre else "--to safetensors"
    check_supported(config, f"--to {format_name}", allowed, suggestion)


def marian_model(model: Any, tokenizer: Any, format_name: str, norms: tuple[str, ...] = ("post",)) -> MarianModel:
    """Return a model as Marian tensors. Raises UserError for a model that cannot be represented.

    A model whose targets begin with padding keeps its vocabulary. In any other model, padding becomes the last id,
    where CTranslate2 expects it; the row of padding is zeros, and its bias prevents padding from being predicted.
    """
    c = model.config
    check_model(c, format_name, norms)
    weights = weights_of(model)
    our_ids = np.arange(c.vocab_size)
    pad_id = c.pad_id
    n_positions = min(model.max_length or MAX_POSITIONS, MAX_POSITIONS)
    if c.decoder_start != "pad":
        our_ids = np.concatenate([np.delete(our_ids, pad_id), [pad_id]])
    tensors = marian.to_marian(weights, c, n_positions)
    source_ids = our_ids
    if c.decoder_start != "pad":
        if c.src_vocab_size is not None:
            source_ids = np.concatenate([np.delete(np.arange(c.src_vocab_size), pad_id), [pad_id]])
        pad_id = c.vocab_size - 1
        row_ids = {marian.SOURCE: source_ids} | dict.fromkeys((marian.SHARED, marian.TARGET, marian.OUTPUT), our_ids)
        for name, ids in row_ids.items():
            if name in tensors:
                tensors[name] = tensors[name][ids]
                tensors[name][-1] = 0
        tensors[marian.BIAS] = tensors[marian.BIAS][:, our_ids]
        tensors[marian.BIAS][:, -1] = PADDING_BIAS
    vocabularies = tuple(
        [subword_names(side)[i] for i in side_ids]
        for side, side_ids in ((tokenizer.source, source_ids), (tokenizer.target, our_ids))
    )
    return MarianModel(tensors, our_ids, (vocabularies[0], vocabularies[1]), pad_id, n_positions)


def subword_names(tokenizer: Any) -> list[str]:
    """Return the subwords of a tokenizer in the order of their ids, spelled as in the tokenizer's file.

    Raises UserError for a Unigram tokenizer.
    """
    if isinstance(tokenizer, SentencePieceTokenizer):
        return sorted(tokenizer.vocabulary, key=tokenizer.vocabulary.__getitem__)
    vocabulary = {token["content"]: token["id"] for token in tokenizer.spec["added_tokens"]}
    if not isinstance(subwords := tokenizer.spec["model"]["vocab"], dict):  # a list of subwords with scores
        raise UserError("export: expected a BPE, WordPiece or WordLevel tokenizer; got Unigram; try --to safetensors")
    vocabulary |= subwords
    return sorted(vocabulary, key=vocabulary.__getitem__)


@WRITERS.register("huggingface")
def write_huggingface(model: Any, tokenizer: Any, config: RunConfig, folder: Path, dtype: str) -> None:
    """Write a MarianMT folder, or a GPT-2 folder for a language model: weights, settings and tokenizer."""
    if config.data.task == "language":
        return write_gpt2(model, tokenizer, max(config.data.max_length, MAX_POSITIONS), folder, dtype)
    check_tokenizer(tokenizer, "huggingface")
    if (eps := model.config.norm_eps) > MAX_EPSILON:
        raise UserError(
            f"export: expected model.norm_eps of at most {MAX_EPSILON:g}, because transformers always uses "
            f"{marian.EPSILON:g}; got {eps:g}; try --to ctranslate2"
        )
    converted = marian_model(model, tokenizer, "huggingface")
    write_tensors(folder / SAFETENSORS, converted.tensors, dtype, "huggingface")
    write_settings(model.config, converted, config, folder, dtype)
    write_tokenizer(tokenizer, converted, folder)


def check_tokenizer(tokenizer: Any, format_name: str) -> None:
    """Raise UserError for a tokenizer that transformers cannot read."""
    if isinstance(tokenizer, PairTokenizer) and not isinstance(tokenizer.source, SentencePieceTokenizer):
        raise UserError(
            f"export: expected a tokenizer with one vocabulary for --to {format_name}; got two vocabularies, which "
            "transformers supports only with SentencePiece; try --to ctranslate2"
        )


def write_settings(
    model_config: TransformerConfig, converted: MarianModel, config: RunConfig, folder: Path, dtype: str
) -> None:
    """Write config.json and generation_config.json."""
    c = model_config
    names = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    sides = {
        f"{side}_{key}": value
        for side in ("encoder", "decoder")
        for key, value in (("layers", c.n_layers), ("attention_heads", c.n_heads), ("ffn_dim", c.d_ff))
    }
    is_shared = c.shares_source or marian.SHARED in converted.tensors
    special = {"pad_token_id": converted.pad_id, "decoder_start_token_id": converted.pad_id}
    special["eos_token_id"] = converted.marian_id(c.eos_id)
    write_json(folder / CONFIG, {
        "architectures": ["MarianMTModel"], "model_type": "marian", "is_encoder_decoder": True, "dtype": dtype,
        "d_model": c.d_model, **sides, "activation_function": names[c.activation], "dropout": c.dropout,
        "attention_dropout": c.attention_dropout, "activation_dropout": c.activation_dropout,
        "scale_embedding": c.scale_embedding, "vocab_size": len(converted.vocabularies[0]),
        "decoder_vocab_size": len(converted.vocabularies[1]), "share_encoder_decoder_embeddings": is_shared,
        "tie_word_embeddings": c.tying != "none", "max_position_embeddings": converted.n_positions, **special,
    })  # fmt: skip
    suppressed = {converted.pad_id, converted.marian_id(c.bos_id), *map(converted.marian_id, c.suppressed_ids)}
    write_json(folder / GENERATION, {
        **special, "bad_words_ids": [[i] for i in sorted(suppressed)], "num_beams": config.search.beam_size,
        "length_penalty": config.search.length_penalty, "max_length": converted.n_positions,
        # With False, a heuristic ends searches.
        "early_stopping": True if config.search.candidate_rule == "fairseq" else "never",
    })  # fmt: skip


def write_tokenizer(tokenizer: Any, converted: MarianModel, folder: Path) -> None:
    """Write the tokenizer: SentencePiece models and vocabularies, or a tokenizer.json with Marian's ids."""
    tokenizer_config: dict[str, Any] = {
        "model_max_length": converted.n_positions, "clean_up_tokenization_spaces": False,
        "pad_token": SPECIALS[0], "eos_token": SPECIALS[2], "unk_token": SPECIALS[3],
    }  # fmt: skip
    if isinstance(tokenizer, PairTokenizer):
        is_separate = not tokenizer.shared
        for side, model_file, vocabulary_file in (
            (tokenizer.source, SENTENCEPIECE[0], VOCABULARY),
            (tokenizer.target, SENTENCEPIECE[1], TARGET_VOCABULARY if is_separate else VOCABULARY),
        ):
            assert isinstance(side, SentencePieceTokenizer)
            (folder / model_file).write_bytes(side.model)
            write_json(folder / vocabulary_file, side.vocabulary)
        tokenizer_config |= {"tokenizer_class": "MarianTokenizer", "separate_vocabs": is_separate}
    else:
        write_json(folder / TOKENIZER, renumbered_spec(tokenizer, converted))
        tokenizer_config |= {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIALS[1]}
    write_json(folder / TOKENIZER_CONFIG, tokenizer_config)


def renumbered_spec(tokenizer: Tokenizer, converted: MarianModel) -> dict[str, Any]:
    """Return a tokenizer.json with Marian's ids that appends the end-of-sentence token to every text."""
    spec = tokenizer.spec
    ids = {name: i for i, name in enumerate(converted.vocabularies[0])}
    model = {
        **spec["model"],
        "vocab": {name: ids[name] for name in sorted(spec["model"]["vocab"], key=ids.__getitem__)},
    }
    added = sorted(({**token, "id": ids[token["content"]]} for token in spec["added_tokens"]), key=lambda t: t["id"])
    eos = SPECIALS[2]
    text = {"Sequence": {"id": "A", "type_id": 0}}
    end = {"SpecialToken": {"id": eos, "type_id": 0}}
    processor = {
        "type": "TemplateProcessing", "single": [text, end],
        "pair": [text, end, {"Sequence": {"id": "B", "type_id": 0}}, end],
        "special_tokens": {eos: {"id": eos, "ids": [ids[eos]], "tokens": [eos]}},
    }  # fmt: skip
    return {**spec, "added_tokens": added, "model": model, "post_processor": processor}
