"""The BERT architecture of Hugging Face transformers, mapped to our encoder.

BERT normalizes after each sub-layer and after the embeddings, has learned positions, token types and biases, and
predicts masked tokens through an additional layer. Our special tokens have the ids 0 to 3, so the import moves the
embedding rows of [PAD], [CLS], [SEP] and [MASK] to these ids.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import decoders, normalizers, pre_tokenizers

from models import TransformerConfig
from train.errors import UserError
from train.formats.huggingface import (
    CONFIG,
    READERS,
    TOKENIZER,
    TOKENIZER_CONFIG,
    ImportedModel,
    make_model_config,
)
from train.formats.marian import ParameterMapping, linear, norm
from train.formats.settings import (
    TRY_SUPPORTED,
    check_required,
    check_vocab_size,
    read_activation,
    read_object,
    read_value,
)
from train.formats.weights import Tensors, read_weights
from train.json_files import read_json
from train.text.affixes import WordTokenizer
from train.text.lines import read_all_lines
from train.text.tokenizer import REMEDY, SPECIAL_IDS, tokenizer_spec

VOCABULARY = "vocab.txt"
# BERT's special tokens, in the order of our ids.
SPECIALS = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
UNKNOWN = "[UNK]"
SIZES = {
    "d_model": "hidden_size", "d_ff": "intermediate_size", "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads", "max_positions": "max_position_embeddings",
}  # fmt: skip
FLOAT_KEYS = {  # our key -> (BERT's key, its default)
    "norm_eps": ("layer_norm_eps", 1e-12), "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
}  # fmt: skip
NAMES = {**SIZES, **{ours: theirs for ours, (theirs, _) in FLOAT_KEYS.items()}, "token_types": "type_vocab_size"}
REQUIRED_SETTINGS: Mapping[str, Any] = {
    "position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False,
}  # fmt: skip
EMBEDDING, OUTPUT = "embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
OUTPUT_BIAS = "cls.predictions.decoder.bias", "cls.predictions.bias"  # the first name is used if both exist
TRANSFORM = "cls.predictions.transform"
POOLER, NEXT_SENTENCE = "pooler.dense.weight", "cls.seq_relationship."
BUFFER = "embeddings.position_ids"
OLDER_NAMES = {".weight": ".gamma", ".bias": ".beta"}  # norm parameters in checkpoints from 2018


def parameters(config: TransformerConfig) -> Iterator[ParameterMapping]:
    """Yield the mappings of all parameters except those with one row per token of the vocabulary."""
    yield ParameterMapping("text_positions.weight", ("embeddings.position_embeddings.weight",), False)
    yield ParameterMapping("token_types.weight", ("embeddings.token_type_embeddings.weight",), False)
    yield from norm("embedding_norm", "embeddings.LayerNorm")
    for i in range(config.n_layers):
        ours, theirs = f"layers.{i}", f"encoder.layer.{i}"
        parts = (f"{theirs}.attention.self.{part}" for part in ("query", "key", "value"))
        yield from linear(f"{ours}.attention.query_key_value", *parts)
        yield from linear(f"{ours}.attention.output", f"{theirs}.attention.output.dense")
        yield from norm(f"{ours}.attention_residual.norm", f"{theirs}.attention.output.LayerNorm")
        yield from linear(f"{ours}.feed_forward.inner", f"{theirs}.intermediate.dense")
        yield from linear(f"{ours}.feed_forward.outer", f"{theirs}.output.dense")
        yield from norm(f"{ours}.feed_forward_residual.norm", f"{theirs}.output.LayerNorm")
    if config.pooler:
        yield from linear("pooler.linear", "pooler.dense")
    if config.output_transform:
        yield from linear("output_transform.inner", f"{TRANSFORM}.dense")
        yield from norm("output_transform.norm", f"{TRANSFORM}.LayerNorm")


@READERS.register("bert")
def read_bert(
    folder: Path, config: Mapping[str, Any], generation_config: Mapping[str, Any], on_warning: Callable[[str], object]
) -> ImportedModel:
    """Read a BERT folder, with or without the layers that predict masked tokens.

    Raises UserError for unsupported features.
    """
    path = folder / CONFIG
    check_required(config, REQUIRED_SETTINGS, str(path))
    value = partial(read_value, config, str(path))
    stored = read_weights(folder)
    weights = {name.removeprefix("bert."): array for name, array in stored.items()}
    if len(weights) < len(stored):
        raise UserError(
            f"{folder}: expected tensors of one model; got names with and without the prefix bert; {TRY_SUPPORTED}"
        )
    if removed := [name for name in weights if name.startswith(NEXT_SENTENCE)]:
        on_warning(f"{folder}: {NEXT_SENTENCE}* is not imported; our models do not predict the next sentence")
        for name in removed:
            del weights[name]
    has_head = any(name in weights for name in OUTPUT_BIAS)
    is_tied = value("tie_word_embeddings", bool, True) or not has_head
    keys: dict[str, Any] = {ours: value(theirs) for ours, theirs in SIZES.items()}
    keys |= {ours: value(theirs, float, default) for ours, (theirs, default) in FLOAT_KEYS.items()}
    keys |= {
        "architecture": "encoder", "norm_placement": "post", "positions": "learned", "attention_bias": True,
        "scale_embedding": False, "embedding_norm": True, "token_types": value("type_vocab_size", int, 2),
        "activation": read_activation(config, str(path), "gelu", "hidden_act"), "pooler": POOLER in weights,
        "output_bias": has_head, "output_transform": has_head, "tying": "output" if is_tied else "none",
    }  # fmt: skip
    for key, minimum in (("token_types", 1), ("max_positions", 3)):  # a text begins with [CLS] and ends with [SEP]
        if keys[key] < minimum:
            raise UserError(f"{path}: {NAMES[key]}: expected at least {minimum}; got {keys[key]}; {TRY_SUPPORTED}")
    tokenizer, bert_ids = read_wordpiece_tokenizer(folder)
    check_vocab_size(folder, "vocab_size", config.get("vocab_size"), len(bert_ids))
    model_config = make_model_config(path, tokenizer, keys, {}, NAMES)
    tables = {"model": keys, "data": {"task": "masking", "max_length": keys["max_positions"]}}
    source_keys = {("data", "max_length"): (path, NAMES["max_positions"])}
    return ImportedModel(
        model_config, tables, source_keys, tokenizer, from_bert(weights, model_config, bert_ids, str(folder))
    )


def from_bert(weights: Mapping[str, Any], config: TransformerConfig, bert_ids: Any, name: str) -> dict[str, Any]:
    """Return our parameters in float32.

    Args:
        bert_ids: BERT's ids of all tokens, in the order of our ids.

    Raises UserError, naming the tensor and the file `name`, for a tensor that does not fit.
    """
    shapes = {parameter: p.shape for parameter, p in config.build_abstract().named_parameters()}
    tensors = Tensors(weights, name)
    rows: dict[str, tuple[str, ...]] = {"embedding.weight": (EMBEDDING,)}
    rows |= {"output_bias": OUTPUT_BIAS} if config.output_bias else {}
    rows |= {"projection": (OUTPUT,)} if config.tying == "none" else {}
    result = {ours: tensors.take(theirs, shapes[ours])[bert_ids] for ours, theirs in rows.items()}
    for ours, parts, is_matrix in parameters(config):
        shape = shapes[ours]
        size = (shape[-1] // len(parts), *shape[:-1]) if is_matrix or len(parts) > 1 else shape
        arrays = [tensors.take(candidates(part), size) for part in parts]
        result[ours] = np.concatenate([x.T for x in arrays], axis=-1) if is_matrix or len(parts) > 1 else arrays[0]
    ignored = {BUFFER, *OUTPUT_BIAS} | ({OUTPUT} if config.tying != "none" else set())
    tensors.check_empty("a BERT model that only predicts masked tokens", lambda key: key in ignored)
    return result


def candidates(name: str) -> tuple[str, ...]:
    """Return the names that a tensor may have in a BERT file, in the order in which they are tried."""
    stem, _, ending = name.rpartition(".")
    return (name, stem + OLDER_NAMES[f".{ending}"]) if stem.endswith("LayerNorm") else (name,)


# ---- the tokenizer


def read_wordpiece_tokenizer(folder: Path) -> tuple[WordTokenizer, Any]:
    """Return the tokenizer with our ids, and each subword's id in the file. Raises UserError for an invalid folder."""
    spec = read_wordpiece_spec(folder)
    vocabulary = spec["model"]["vocab"]
    for token in (*SPECIALS.values(), UNKNOWN):
        if token not in vocabulary:
            raise UserError(
                f"{folder}: expected a vocabulary with {token}; this token is missing; try the files of a BERT model"
            )
    special = [vocabulary[token] for token in SPECIALS.values()]
    bert_ids = np.array([*special, *(i for i in range(len(vocabulary)) if i not in {*special})])
    names = sorted(vocabulary, key=vocabulary.__getitem__)
    if [vocabulary[token] for token in names] != [*range(len(names))]:
        raise UserError(f"{folder}: expected each id of the vocabulary once; got missing or repeated ids; try {REMEDY}")
    our_ids = {names[i]: our_id for our_id, i in enumerate(bert_ids.tolist())}
    added = [{**token, "id": our_ids[token["content"]]} for token in spec["added_tokens"]]
    content = {**spec, "model": {**spec["model"], "vocab": our_ids}, "added_tokens": added, "post_processor": None}
    return WordTokenizer({**content, SPECIAL_IDS: [0, 1, 2, 3]}, str(folder)), bert_ids


def read_wordpiece_spec(folder: Path) -> dict[str, Any]:
    """Return the content of tokenizer.json, or of vocab.txt and tokenizer_config.json converted to its layout."""
    if (folder / TOKENIZER).exists():
        spec = read_json(folder / TOKENIZER, "a Hugging Face tokenizer.json", REMEDY)
        model = spec.get("model") if isinstance(spec, dict) else None
        added = spec.get("added_tokens") if isinstance(spec, dict) else None
        if (
            not isinstance(model, dict)
            or model.get("type") != "WordPiece"
            or not isinstance(model.get("vocab"), dict)
            or not all(type(i) is int for i in model["vocab"].values())
            or not isinstance(added, list)
            or not all(isinstance(token, dict) and token.get("content") in model["vocab"] for token in added)
        ):
            raise UserError(f"{folder / TOKENIZER}: expected a WordPiece tokenizer; got another kind; {TRY_SUPPORTED}")
        return dict(spec)
    tokenizer_config = read_object(folder / TOKENIZER_CONFIG, is_optional=True)
    names = [line.rstrip("\n") for line in read_all_lines(folder / VOCABULARY)]
    vocabulary = {name: i for i, name in enumerate(names)}
    if len(vocabulary) < len(names):
        raise UserError(f"{folder / VOCABULARY}: expected each subword once; got a repeated subword; try {REMEDY}")
    normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=tokenizer_config.get("tokenize_chinese_chars", True) is not False,
        strip_accents=tokenizer_config.get("strip_accents"),
        lowercase=tokenizer_config.get("do_lower_case", True) is not False,
    )
    model = {
        "type": "WordPiece", "unk_token": UNKNOWN, "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
        "vocab": vocabulary,
    }  # fmt: skip
    spec = tokenizer_spec(model, normalizer, pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(prefix="##"))
    flags = {name: value for name, value in spec["added_tokens"][0].items() if name not in ("id", "content")}
    special = [*SPECIALS.values(), UNKNOWN]
    return spec | {"added_tokens": [{"id": vocabulary.get(token), "content": token, **flags} for token in special]}
