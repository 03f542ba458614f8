"""The Marian architecture of Hugging Face transformers: its weights and its config.json, mapped to our Transformer.

Marian normalizes after each sub-layer, has biases everywhere and begins targets with padding. Its position vectors have
sines in columns 0 to D / 2 - 1 and cosines in the others.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import npx
from models import TransformerConfig, sinusoids
from train.errors import UserError
from train.formats.export import sinusoids_of
from train.formats.settings import TRY_SUPPORTED, read_activation, read_value
from train.formats.weights import Tensors

EPSILON = 1e-5  # epsilon of the layer norms in transformers' Marian
SHARED = "model.shared.weight"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
OUTPUT, BIAS = "lm_head.weight", "final_logits_bias"
POSITIONS = {"source_positions": "model.encoder.embed_positions.weight",
             "target_positions": "model.decoder.embed_positions.weight"}  # fmt: skip
NAMES = {"n_layers": "encoder_layers", "n_heads": "encoder_attention_heads", "d_ff": "encoder_ffn_dim"}  # ours, theirs
TOLERANCE = 1e-4  # maximum error of a sinusoid: some programs compute their tables in float32


class ParameterMapping(NamedTuple):
    """One of our parameters, and the tensors that are concatenated to form it."""

    ours: str
    theirs: tuple[str, ...]
    is_matrix: bool  # a matrix is stored transposed


def layer_parameters(config: TransformerConfig) -> Iterator[ParameterMapping]:
    """Yield the mappings of the parameters of all layers."""
    sublayers = {
        "encoder": {"attention": ("self_attn", "qkv")},
        "decoder": {"attention": ("self_attn", "qkv"), "cross_attention": ("encoder_attn", "q kv")},
    }
    inner = {"qkv": "query_key_value", "q": "query", "kv": "key_value"}
    for side, attentions in sublayers.items():
        for i in range(config.n_layers):
            ours, theirs = f"{side}.{i}", f"model.{side}.layers.{i}"
            for name, (their_name, projections) in attentions.items():
                for letters in projections.split():
                    parts = tuple(f"{theirs}.{their_name}.{letter}_proj" for letter in letters)
                    yield from linear(f"{ours}.{name}.{inner[letters]}", *parts)
                yield from linear(f"{ours}.{name}.output", f"{theirs}.{their_name}.out_proj")
                yield from norm(f"{ours}.{name}_residual.norm", f"{theirs}.{their_name}_layer_norm")
            yield from linear(f"{ours}.feed_forward.inner", f"{theirs}.fc1")
            yield from linear(f"{ours}.feed_forward.outer", f"{theirs}.fc2")
            yield from norm(f"{ours}.feed_forward_residual.norm", f"{theirs}.final_layer_norm")
        if config.norm_placement == "pre":  # this norm exists in CTranslate2 but not in transformers
            yield from norm(f"{side}_norm", f"model.{side}.layer_norm")


def linear(ours: str, *theirs: str) -> Iterator[ParameterMapping]:
    """Yield the mappings of the weight and bias of a projection."""
    yield ParameterMapping(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), True)
    yield ParameterMapping(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs), False)


def norm(ours: str, theirs: str) -> Iterator[ParameterMapping]:
    """Yield the mappings of the gain and bias of a layer norm."""
    yield ParameterMapping(f"{ours}.gamma", (f"{theirs}.weight",), False)
    yield ParameterMapping(f"{ours}.beta", (f"{theirs}.bias",), False)


# ---- from transformers


def read_config(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Convert a config.json to arguments of our TransformerConfig, except those for the vocabulary.

    Raises UserError, naming the key and the file `name`, for unsupported features.
    """
    value = partial(read_value, config, name)
    for ours, sides in {
        "n_layers": ("encoder_layers", "decoder_layers"),
        "n_heads": ("encoder_attention_heads", "decoder_attention_heads"),
        "d_ff": ("encoder_ffn_dim", "decoder_ffn_dim"),
    }.items():
        if (encoder := value(sides[0])) != (decoder := value(sides[1])):
            raise UserError(
                f"{name}: {sides[1]}: expected {encoder}, the same as {sides[0]}, because model.{ours} applies "
                f"to encoder and decoder; got {decoder}; {TRY_SUPPORTED}"
            )
    for key in ("normalize_before", "normalize_embedding", "add_final_layer_norm"):
        if value(key, bool, False):
            raise UserError(f"{name}: {key}: expected false, as in transformers' Marian; got true; {TRY_SUPPORTED}")
    is_shared, is_tied = (value(key, bool, True) for key in ("share_encoder_decoder_embeddings", "tie_word_embeddings"))
    return {
        "d_model": value("d_model"), "d_ff": value("encoder_ffn_dim"), "n_heads": value("encoder_attention_heads"),
        "n_layers": value("encoder_layers"), "dropout": value("dropout", float, 0.1),
        "attention_dropout": value("attention_dropout", float, 0.0),
        "activation_dropout": value("activation_dropout", float, 0.0),
        "norm_placement": "post", "norm_eps": EPSILON, "attention_bias": True, "output_bias": True,
        "activation": read_activation(config, name), "scale_embedding": value("scale_embedding", bool, False),
        "positions": "sinusoidal_halves", "position_rates": "paper",
        "tying": ("all" if is_shared else "output") if is_tied else "none",
    }  # fmt: skip


def sinusoid_table(n_positions: int, d_model: int, rate_scheme: str = "paper") -> Any:
    """Return Marian's sinusoids (n_positions, D) on the host."""
    return npx.to_host(sinusoids(n_positions, d_model, interleaved=False, rate_scheme=rate_scheme))


def read_positions(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return the [model] keys for the position tables in the file, if it has any.

    Tables that are not sinusoids are imported as learned positions.
    """
    tables = [weights[name] for name in POSITIONS.values() if name in weights]
    for rates in ("paper", "tensor2tensor"):
        if all(
            table.ndim == 2
            and np.abs(table - sinusoid_table(len(table), table.shape[1], rates)).max(initial=0) < TOLERANCE
            for table in tables
        ):
            return {"position_rates": rates}
    if len(tables) < len(POSITIONS) or len({table.shape for table in tables}) > 1:
        got = ", ".join(f"{name} {weights[name].shape}" for name in POSITIONS.values() if name in weights)
        raise UserError(f"positions: expected sinusoids, or two tables of one shape; got {got}; {TRY_SUPPORTED}")
    return {"positions": "learned", "position_rates": None, "max_positions": len(tables[0])}


def from_marian(weights: Mapping[str, Any], config: TransformerConfig, name: str) -> dict[str, Any]:
    """Return our parameters in float32.

    Raises UserError, naming the tensor and the file `name`, for a tensor that does not fit.
    """
    shapes = {parameter: p.shape for parameter, p in config.build_abstract().named_parameters()}
    tensors = Tensors(weights, name)
    result = dict[str, Any]()
    aliases: dict[str, tuple[str, ...]]
    aliases = {"embedding.weight": (TARGET, OUTPUT) if config.tying == "output" else (TARGET, SHARED)}
    if config.shares_source:
        aliases = {"embedding.weight": (SHARED, TARGET, SOURCE, OUTPUT)}
    aliases |= {"source_embedding.weight": (SOURCE, SHARED), "projection": (OUTPUT,)}
    if config.positions == "learned":
        aliases |= {f"{ours}.weight": (theirs,) for ours, theirs in POSITIONS.items()}
    for ours, theirs in aliases.items():
        if ours in shapes:
            result[ours] = tensors.take(theirs, shapes[ours])
    result["output_bias"] = (
        tensors.take((BIAS,), (1, config.vocab_size))[0] if BIAS in weights else np.zeros(config.vocab_size, "f4")
    )
    for mapped in layer_parameters(config):
        *rows, width = shapes[mapped.ours]
        shape = (width // len(mapped.theirs), *rows)
        parts = [tensors.take((theirs,), shape) for theirs in mapped.theirs]
        result[mapped.ours] = np.concatenate([part.T if mapped.is_matrix else part for part in parts], axis=-1)
    # These tables may remain: sinusoids are computed, and a tied table is read under only one of its names.
    unused_names = {*POSITIONS.values(), SHARED, SOURCE, TARGET, OUTPUT}
    tensors.check_empty("a Marian model", unused_names.__contains__)
    return result


# ---- to transformers


def to_marian(ours: Mapping[str, Any], config: TransformerConfig, n_positions: int) -> dict[str, Any]:
    """Return the tensors of a Marian model equivalent to our model, for at most `n_positions` positions.

    A permutation of the D columns turns interleaved sinusoids into Marian's. Other differences in the first layer's
    input, such as the embedding of `bos_id`, become part of the position tables. Biases that our model does not
    have are set to zero.
    """
    columns = column_order(config)
    shapes = {mapped.ours: mapped for mapped in layer_parameters(config)}
    result: dict[str, Any] = {}
    for name, mapped in shapes.items():
        if name in ours:
            array = ours[name]
        else:  # the bias of an attention projection
            array = np.zeros(ours[name.replace(".bias", ".weight")].shape[1], np.float32)
        parts = np.split(array, len(mapped.theirs), axis=-1)
        for theirs, part in zip(mapped.theirs, parts, strict=True):
            result[theirs] = np.ascontiguousarray(
                permute_columns(theirs, part.T if mapped.is_matrix else part, columns)
            )
    embedding = ours["embedding.weight"][:, columns]
    source = embedding if config.shares_source else ours["source_embedding.weight"][:, columns]
    if config.shares_source:
        result[SHARED] = embedding
    else:
        result |= {SOURCE: source, TARGET: embedding}
    if "projection" in ours:
        result[OUTPUT] = ours["projection"][:, columns]
    bias = ours.get("output_bias")
    result[BIAS] = np.zeros((1, len(embedding)), np.float32) if bias is None else bias[None]
    return result | position_tables(ours, config, n_positions, columns)


def column_order(config: TransformerConfig) -> Any:
    """Return an array (D,) whose entry i is the index of our column that becomes Marian's column i.

    For interleaved sinusoids, the even columns come before the odd ones.
    """
    columns = np.arange(config.d_model)
    return np.concatenate([columns[::2], columns[1::2]]) if config.positions == "sinusoidal" else columns


def permute_columns(name: str, array: Any, columns: Any) -> Any:
    """Reorder the axis of a layer's tensor whose entries correspond to the columns of the embedding.

    It is the output axis for norms, out_proj and fc2, and the input axis for the other matrices (n_out, n_in).
    """
    if "norm" in name:
        return array[columns]
    if any(f".{part}." in name for part in ("out_proj", "fc2")):
        return array[columns]
    return array[:, columns] if array.ndim == 2 else array


def position_tables(
    ours: Mapping[str, Any], config: TransformerConfig, n_positions: int, columns: Any
) -> dict[str, Any]:
    """Return the position tables of encoder and decoder, or no tables if both equal Marian's sinusoids."""
    marian = sinusoid_table(n_positions, config.d_model)
    scale = np.float32(config.d_model**0.5 if config.scale_embedding else 1)
    result = {}
    for side, theirs in POSITIONS.items():
        if config.positions == "learned":
            table = ours[f"{side}.weight"][:n_positions].copy()
        else:
            table = sinusoids_of(config, n_positions)[:, columns]
        if side == "source_positions" and "target_space.weight" in ours:
            table = table + ours["target_space.weight"].reshape(-1)[columns]
        if side == "target_positions" and config.decoder_start == "bos":
            bos = ours["embedding.weight"][config.bos_id][columns]
            table[0] += bos * scale  # the decoder's first input is a row of zeros
        result[theirs] = table
    same = all(table.shape == marian.shape and np.abs(table - marian).max() < 1e-6 for table in result.values())
    return {} if same else result
