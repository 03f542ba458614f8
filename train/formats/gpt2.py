"""The GPT-2 architecture of Hugging Face transformers, in terms of our decoder-only model.

GPT-2 normalizes before each sub-layer and after the last layer, has learned positions and biases, and its matrices
have the layout of ours.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from models import TransformerConfig
from train.errors import UserError
from train.formats import marian
from train.formats.export import weights_of, write_json, write_tensors
from train.formats.weights import SAFETENSORS
from train.text.tokenizer import SPECIALS

ACTIVATIONS = {ours: theirs for theirs, ours in marian.ACTIVATIONS.items()}
EMBEDDING, POSITIONS, OUTPUT = "transformer.wte.weight", "transformer.wpe.weight", "lm_head.weight"
SUBLAYERS = {
    "attention.query_key_value": "attn.c_attn", "attention.output": "attn.c_proj", "feed_forward.inner": "mlp.c_fc",
    "feed_forward.outer": "mlp.c_proj",
}  # fmt: skip
NORMS = {"attention_residual.norm": "ln_1", "feed_forward_residual.norm": "ln_2"}


def parameters(c: TransformerConfig) -> Iterator[tuple[str, str]]:
    """Yield our name and GPT-2's of each parameter but the tables of tokens and positions."""
    pairs = [("norm", "ln_f", "gamma beta")]
    for i in range(c.n_layers):
        pairs += [(f"layers.{i}.{ours}", f"h.{i}.{theirs}", "weight bias") for ours, theirs in SUBLAYERS.items()]
        pairs += [(f"layers.{i}.{ours}", f"h.{i}.{theirs}", "gamma beta") for ours, theirs in NORMS.items()]
    for ours, theirs, parts in pairs:
        for part, other in zip(parts.split(), ("weight", "bias"), strict=True):
            yield f"{ours}.{part}", f"transformer.{theirs}.{other}"


def check_model(c: TransformerConfig) -> None:
    """Raise UserError, naming the key, for a model that GPT-2's architecture cannot represent."""
    values: dict[str, tuple[Any, ...]] = {
        "norm": ("pre",),
        "normalization": ("layer_norm",),
        "activation": tuple(ACTIVATIONS),
        "positions": ("sinusoidal", "sinusoidal_halves", "learned"),
        "output_bias": (False,),
        "n_outputs": (None,),
        "key_size": (c.d_model // c.n_heads,),
        "value_size": (c.d_model // c.n_heads,),
    }
    for name, allowed in values.items():
        if (value := getattr(c, name)) not in allowed:
            expected = " or ".join(map(str, allowed))
            raise UserError(
                f"export: expected model.{name} = {expected}, which GPT-2 can represent; got {value}; try --to "
                "safetensors"
            )


def to_gpt2(ours: Mapping[str, Any], c: TransformerConfig, n_positions: int) -> dict[str, Any]:
    """Return the tensors of a GPT-2 model that computes the same as our model, for at most `n_positions` positions.

    Sinusoids become the table of positions, and the scale of the embedding becomes part of it; then the output has a
    matrix of its own.
    """
    result = {}
    for name, theirs in parameters(c):
        if name in ours:
            result[theirs] = ours[name]
        else:  # the bias of an attention projection
            result[theirs] = np.zeros(ours[name.replace(".bias", ".weight")].shape[1], np.float32)
    output = ours.get("projection", ours["embedding.weight"])
    scale = np.float32(c.d_model**0.5 if c.scale_embedding else 1)
    result[EMBEDDING] = ours["embedding.weight"] * scale
    if not is_tied(c):
        result[OUTPUT] = output
    if c.positions == "learned":
        result[POSITIONS] = ours["text_positions.weight"]
    else:
        halves = c.positions == "sinusoidal_halves"
        rates = marian.resolve_rates(halves, c.position_rates)
        result[POSITIONS] = marian.sinusoid_table(n_positions, c.d_model, rates, halves)
    return result


def is_tied(c: TransformerConfig) -> bool:
    """Return whether GPT-2's embedding and output are one matrix."""
    return c.tying != "none" and not c.scale_embedding


def write_gpt2(model: Any, tokenizer: Any, max_length: int, folder: Path, dtype: str) -> None:
    """Write a GPT-2 folder: weights, configuration and tokenizer. `max_length`: positions of sinusoids."""
    c = model.config
    check_model(c)
    tensors = to_gpt2(weights_of(model), c, max_length)
    write_tensors(folder / SAFETENSORS, tensors, dtype, "huggingface")
    n_positions = len(tensors[POSITIONS])
    special = {"bos_token_id": c.bos_id, "eos_token_id": c.eos_id, "pad_token_id": c.pad_id}
    write_json(folder / "config.json", {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "dtype": dtype, "vocab_size": c.vocab_size,
        "n_embd": c.d_model, "n_layer": c.n_layers, "n_head": c.n_heads, "n_inner": c.d_ff, "n_positions": n_positions,
        "activation_function": ACTIVATIONS[c.activation], "layer_norm_epsilon": c.layer_norm_eps,
        "resid_pdrop": c.dropout, "embd_pdrop": c.dropout, "attn_pdrop": c.attention_dropout,
        "tie_word_embeddings": is_tied(c), **special,
    })  # fmt: skip
    never = [[i] for i in sorted({c.pad_id, c.bos_id, *c.suppressed_ids})]
    write_json(folder / "generation_config.json", {**special, "bad_words_ids": never, "max_length": n_positions})
    tokenizer.save(folder / "tokenizer.json")
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": n_positions,
        "clean_up_tokenization_spaces": False, "pad_token": SPECIALS[0], "bos_token": SPECIALS[1],
        "eos_token": SPECIALS[2], "unk_token": SPECIALS[3],
    })  # fmt: skip
