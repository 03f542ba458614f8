"""The GPT-2 architecture of Hugging Face transformers, mapped to our decoder-only model.

GPT-2 normalizes before each sub-layer and after the last layer, and has learned positions and biases. Its matrices have
the same layout as ours.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import decoders, pre_tokenizers

from models import TransformerConfig
from train.errors import UserError
from train.formats.export import check_supported, sinusoids_of, weights_of, write_json, write_tensors
from train.formats.huggingface import (
    CONFIG,
    READERS,
    TOKENIZER,
    TOKENIZER_CONFIG,
    VOCABULARY,
    ImportedModel,
    generation_file,
    make_model_config,
    warn_of_settings,
)
from train.formats.settings import (
    ACTIVATIONS,
    TRY_SUPPORTED,
    check_required,
    check_vocab_size,
    read_activation,
    read_object,
    read_value,
)
from train.formats.weights import SAFETENSORS, Tensors, read_weights
from train.json_files import read_json
from train.text.lines import read_all_lines
from train.text.plain import PlainTokenizer
from train.text.tokenizer import REMEDY, SPECIAL_IDS, SPECIALS, tokenizer_spec

OUR_ACTIVATIONS = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
EMBEDDING, POSITIONS, OUTPUT = "transformer.wte.weight", "transformer.wpe.weight", "lm_head.weight"
SUBLAYERS = {
    "attention.query_key_value": "attn.c_attn", "attention.output": "attn.c_proj", "feed_forward.inner": "mlp.c_fc",
    "feed_forward.outer": "mlp.c_proj",
}  # fmt: skip
SIZES = {"d_model": "n_embd", "n_layers": "n_layer", "n_heads": "n_head", "max_positions": "n_positions"}
FLOAT_KEYS = {  # our key -> (GPT-2's key, its default)
    "norm_eps": ("layer_norm_epsilon", 1e-5), "dropout": ("resid_pdrop", 0.1),
    "attention_dropout": ("attn_pdrop", 0.1),
}  # fmt: skip
NAMES = {**SIZES, "d_ff": "n_inner", **{ours: theirs for ours, (theirs, _) in FLOAT_KEYS.items()}}
REQUIRED_SETTINGS: Mapping[str, Any] = {
    "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False,
}  # fmt: skip
BUFFERS = ".attn.bias", ".attn.masked_bias"  # causal masks in older files
MERGES, END = "merges.txt", "<|endoftext|>"
UNUSED_BYTES = "\u00c0\u00c1\u00f5"  # GPT-2's characters for bytes that never occur in UTF-8
NORMS = {"attention_residual.norm": "ln_1", "feed_forward_residual.norm": "ln_2"}


def parameters(config: TransformerConfig) -> Iterator[tuple[str, str]]:
    """Yield our name and GPT-2's name for each parameter except the token and position tables."""
    pairs = [("norm", "ln_f", "gamma beta")]
    for i in range(config.n_layers):
        pairs += [(f"layers.{i}.{ours}", f"h.{i}.{theirs}", "weight bias") for ours, theirs in SUBLAYERS.items()]
        pairs += [(f"layers.{i}.{ours}", f"h.{i}.{theirs}", "gamma beta") for ours, theirs in NORMS.items()]
    for ours, theirs, parts in pairs:
        for part, other in zip(parts.split(), ("weight", "bias"), strict=True):
            yield f"{ours}.{part}", f"transformer.{theirs}.{other}"


# ---- from transformers


@READERS.register("gpt2")
def read_gpt2(
    folder: Path, config: Mapping[str, Any], generation_config: Mapping[str, Any], on_warning: Callable[[str], object]
) -> ImportedModel:
    """Read a GPT-2 folder. Raises UserError for features that our model does not have."""
    path = folder / CONFIG
    check_required(config, REQUIRED_SETTINGS, str(path))
    value = partial(read_value, config, str(path))
    keys: dict[str, Any] = {ours: value(theirs) for ours, theirs in SIZES.items()}
    keys["d_ff"] = 4 * keys["d_model"] if config.get("n_inner") is None else value("n_inner")
    keys |= {ours: value(theirs, float, default) for ours, (theirs, default) in FLOAT_KEYS.items()}
    keys |= {
        "architecture": "decoder", "norm_placement": "pre", "positions": "learned", "attention_bias": True,
        "scale_embedding": False, "activation": read_activation(config, str(path), "gelu_new"),
        "tying": "all" if value("tie_word_embeddings", bool, True) else "none",
    }  # fmt: skip
    tokenizer = read_byte_level_tokenizer(folder, config)
    check_vocab_size(folder, "vocab_size", config.get("vocab_size"), tokenizer.vocab_size)
    model_config = make_model_config(path, tokenizer, keys, generation_config, NAMES)
    if (rate := value("embd_pdrop", float, 0.1)) != keys["dropout"]:
        on_warning(f"{path}: embd_pdrop = {rate} is not imported; resid_pdrop = {keys['dropout']} replaces it")
    warn_of_settings(generation_config, generation_file(folder), on_warning)
    tables = {"model": keys, "data": {"task": "language", "max_length": keys["max_positions"]}}
    source_keys = {("data", "max_length"): (path, NAMES["max_positions"])}
    weights = read_weights(folder)
    return ImportedModel(model_config, tables, source_keys, tokenizer, from_gpt2(weights, model_config, str(folder)))


def from_gpt2(weights: Mapping[str, Any], config: TransformerConfig, name: str) -> dict[str, Any]:
    """Return our parameters in float32.

    Raises UserError, naming the tensor and the file `name`, for a tensor that does not fit.
    """
    shapes = {parameter: p.shape for parameter, p in config.build_abstract().named_parameters()}
    tensors = Tensors(weights, name)
    pairs = [("embedding.weight", EMBEDDING), ("text_positions.weight", POSITIONS), *parameters(config)]
    pairs += [("projection", OUTPUT)] * (config.tying == "none")
    prefix = "transformer."
    result = {ours: tensors.take((theirs, theirs.removeprefix(prefix)), shapes[ours]) for ours, theirs in pairs}
    tensors.check_empty("a GPT-2 model", lambda key: key == OUTPUT or key.endswith(BUFFERS))
    return result


def read_byte_level_tokenizer(folder: Path, config: Mapping[str, Any]) -> PlainTokenizer:
    """Return the byte-level tokenizer of a folder. Raises UserError for a tokenizer of another kind.

    GPT-2 has only one special token, which marks the end of a text. Padding, the beginning of a text and the unknown
    token are represented by bytes that never occur in UTF-8, so no new rows are needed.
    """
    spec = read_byte_level_spec(folder)
    names = {token["content"] for token in spec["added_tokens"]}
    if not names.issuperset(SPECIALS):
        vocabulary = spec["model"]["vocab"]
        eos = config.get("eos_token_id")
        ids = [vocabulary.get(byte) for byte in UNUSED_BYTES]
        if type(eos) is not int:
            raise UserError(f"{folder / CONFIG}: eos_token_id: expected a whole number; got {eos!r}; {TRY_SUPPORTED}")
        if None in ids:
            raise UserError(f"{folder}: the tokenizer lacks some bytes; try a model with a byte-level tokenizer")
        spec = {**spec, SPECIAL_IDS: [*ids[:2], eos, ids[2]]}
    return PlainTokenizer({**spec, "post_processor": None}, str(folder / TOKENIZER))


def read_byte_level_spec(folder: Path) -> dict[str, Any]:
    """Return the content of tokenizer.json, or of vocab.json and merges.txt converted to its layout."""
    if (folder / TOKENIZER).exists():
        spec = read_json(folder / TOKENIZER, "a Hugging Face tokenizer.json", REMEDY)
        model = spec.get("model") if isinstance(spec, dict) else None
        if (
            not isinstance(model, dict)
            or not isinstance(model.get("vocab"), dict)
            or not isinstance(added := spec.get("added_tokens"), list)
            or not all(isinstance(token, dict) and isinstance(token.get("content"), str) for token in added)
        ):
            raise UserError(
                f"{folder / TOKENIZER}: expected a byte-level BPE tokenizer; got another kind; {TRY_SUPPORTED}"
            )
        return dict(spec)
    vocabulary = read_object(folder / VOCABULARY)
    merges = [line.split(" ") for line in read_all_lines(folder / MERGES) if line and not line.startswith("#version")]
    settings = read_object(folder / TOKENIZER_CONFIG, is_optional=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=settings.get("add_prefix_space") is True)
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges}
    spec = tokenizer_spec(model, None, byte_level, decoders.ByteLevel())
    return spec | {"added_tokens": [
        {**token, "id": vocabulary[END], "content": END} for token in spec["added_tokens"][:1] if END in vocabulary
    ]}  # fmt: skip


# ---- to transformers


def check_model(config: TransformerConfig) -> None:
    """Raise UserError, naming the key, for a model that GPT-2's architecture cannot represent."""
    allowed: dict[str, tuple[Any, ...]] = {
        "architecture": ("decoder",),
        "norm_placement": ("pre",),
        "activation": tuple(OUR_ACTIVATIONS),
        "positions": ("sinusoidal", "sinusoidal_halves", "learned"),
    }
    check_supported(config, "GPT-2", allowed)


def to_gpt2(ours: Mapping[str, Any], config: TransformerConfig, n_positions: int) -> dict[str, Any]:
    """Return the tensors of a GPT-2 model equivalent to ours, for at most `n_positions` positions.

    Sinusoids become the position table. If the model scales its embedding, the exported embedding includes the scale,
    and the output has a separate matrix.
    """
    result = {}
    for name, theirs in parameters(config):
        if name in ours:
            result[theirs] = ours[name]
        else:  # the bias of an attention projection
            result[theirs] = np.zeros(ours[name.replace(".bias", ".weight")].shape[1], np.float32)
    output = ours.get("projection", ours["embedding.weight"])
    scale = np.float32(config.d_model**0.5 if config.scale_embedding else 1)
    result[EMBEDDING] = ours["embedding.weight"] * scale
    if not is_tied(config):
        result[OUTPUT] = output
    if config.positions == "learned":
        result[POSITIONS] = ours["text_positions.weight"]
    else:
        result[POSITIONS] = sinusoids_of(config, n_positions)
    return result


def is_tied(config: TransformerConfig) -> bool:
    """Return whether GPT-2's embedding and output share a matrix."""
    return config.tying != "none" and not config.scale_embedding


def write_gpt2(model: Any, tokenizer: Any, max_length: int, folder: Path, dtype: str) -> None:
    """Write a GPT-2 folder: weights, configuration and tokenizer.

    Args:
        max_length: number of sinusoidal positions.
    """
    c = model.config
    check_model(c)
    tensors = to_gpt2(weights_of(model), c, max_length)
    write_tensors(folder / SAFETENSORS, tensors, dtype, "huggingface")
    n_positions = len(tensors[POSITIONS])
    special = {"bos_token_id": c.bos_id, "eos_token_id": c.eos_id, "pad_token_id": c.pad_id}
    write_json(folder / "config.json", {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "dtype": dtype, "vocab_size": c.vocab_size,
        "n_embd": c.d_model, "n_layer": c.n_layers, "n_head": c.n_heads, "n_inner": c.d_ff, "n_positions": n_positions,
        "activation_function": OUR_ACTIVATIONS[c.activation], "layer_norm_epsilon": c.norm_eps,
        "resid_pdrop": c.dropout, "embd_pdrop": c.dropout, "attn_pdrop": c.attention_dropout,
        "tie_word_embeddings": is_tied(c), **special,
    })  # fmt: skip
    suppressed = [[i] for i in sorted({c.pad_id, c.bos_id, *c.suppressed_ids})]
    write_json(folder / "generation_config.json", {**special, "bad_words_ids": suppressed, "max_length": n_positions})
    spec = tokenizer.spec
    write_json(folder / TOKENIZER, {name: value for name, value in spec.items() if name != SPECIAL_IDS})
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIALS, strict=True))
    if SPECIAL_IDS in spec:
        end = next((token["content"] for token in spec["added_tokens"] if token["id"] == c.eos_id), END)
        names = dict.fromkeys(("bos_token", "eos_token", "unk_token"), end)
    write_json(folder / TOKENIZER_CONFIG, {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": n_positions,
        "clean_up_tokenization_spaces": False, **names,
    })  # fmt: skip
