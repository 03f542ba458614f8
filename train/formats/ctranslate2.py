"""Export to CTranslate2, through its own package (extra `formats`)."""

from pathlib import Path
from typing import Any

import numpy as np

from models import TransformerConfig
from train.errors import UserError, pip_install
from train.formats import marian
from train.formats.export import WRITERS, check_range
from train.formats.marian_folder import PADDING_BIAS, MarianModel, marian_model, write_tokenizer
from train.run.config import RunConfig
from train.text.pair_tokenizer import PairTokenizer
from train.text.sentencepiece_tokenizer import SentencePieceTokenizer
from train.text.tokenizer import SPECIALS

ACTIVATIONS = {"relu": "RELU", "gelu": "GELUTanh", "gelu_erf": "GELU", "silu": "SWISH"}


@WRITERS.register("ctranslate2")
def write_ctranslate2(model: Any, tokenizer: Any, config: RunConfig, folder: Path, dtype: str) -> None:
    """Write a folder that `ctranslate2.Translator` loads, with the tokenizer."""
    try:
        from ctranslate2.specs import TransformerSpec, common_spec
    except ImportError:
        raise UserError(f"export: the package ctranslate2 is not installed; try {pip_install('formats')}") from None
    c = model.config
    converted = marian_model(model, tokenizer, "ctranslate2", ("post", "pre"))
    if dtype != "int8":
        check_range(converted.tensors, dtype)
    activation = getattr(common_spec.Activation, ACTIVATIONS[c.activation])
    spec = TransformerSpec.from_config(
        (c.n_layers, c.n_layers), c.n_heads, pre_norm=c.norm_placement == "pre", activation=activation
    )
    set_weights(spec, converted, c)
    # Padding is left out, because CTranslate2 neither reads nor predicts it.
    source, target = (names[:-1] if is_pad_last(converted) else names for names in converted.vocabularies)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.eos_token = spec.config.decoder_start_token = target[converted.marian_id(c.eos_id)]
    spec.config.unk_token = SPECIALS[3]
    spec.config.add_source_eos = False  # the tokenizers append EOS, as for a model converted from Marian
    spec.config.layer_norm_epsilon = c.norm_eps
    spec.validate()
    spec.optimize(quantization=dtype)
    spec.save(str(folder))
    if not isinstance(tokenizer, PairTokenizer) or isinstance(tokenizer.source, SentencePieceTokenizer):
        tokenizer_folder = folder / "tokenizer"
        tokenizer_folder.mkdir()
        write_tokenizer(tokenizer, converted, tokenizer_folder)
    else:
        tokenizer.save(folder / "tokenizer.json")


def is_pad_last(converted: MarianModel) -> bool:
    """Return whether padding is the last id of both vocabularies and can therefore be left out."""
    return all(converted.pad_id == len(names) - 1 for names in converted.vocabularies)


def set_weights(spec: Any, converted: MarianModel, config: TransformerConfig) -> None:
    """Set the variables of a TransformerSpec from Marian tensors."""
    tensors = converted.tensors
    rows = -1 if is_pad_last(converted) else None

    def linear(target: Any, *names: str) -> None:
        target.weight = np.concatenate([tensors[f"{name}.weight"] for name in names])
        target.bias = np.concatenate([tensors[f"{name}.bias"] for name in names])

    def norm(target: Any, name: str) -> None:
        target.gamma, target.beta = tensors[f"{name}.weight"], tensors[f"{name}.bias"]

    target = tensors.get(marian.TARGET, tensors.get(marian.SHARED))
    assert target is not None
    embeddings = {"encoder": tensors.get(marian.SOURCE, target), "decoder": target}
    positions = dict(zip(embeddings, marian.POSITIONS.values(), strict=True))
    for side, layers in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        embedding = layers.embeddings[0] if side == "encoder" else layers.embeddings
        embedding.weight = embeddings[side][:rows]
        layers.scale_embeddings = config.d_model**0.5 if config.scale_embedding else 1.0
        table = tensors.get(positions[side])
        table = marian.sinusoid_table(converted.n_positions, config.d_model) if table is None else table.copy()
        if side == "decoder":  # CTranslate2 replaces the embedding of <pad>, the first input, by zeros
            table[0] += embeddings[side][converted.pad_id] * np.float32(layers.scale_embeddings)
        layers.position_encodings.encodings = table
        if config.norm_placement == "pre":
            norm(layers.layer_norm, f"model.{side}.layer_norm")
        for i, layer in enumerate(layers.layer):
            name = f"model.{side}.layers.{i}"
            attentions: list[tuple[Any, str, tuple[str, ...]]] = [(layer.self_attention, "self_attn", ("qkv",))]
            if side == "decoder":
                attentions.append((layer.attention, "encoder_attn", ("q", "kv")))
            for attention, part, projections in attentions:
                for j, letters in enumerate(projections):
                    linear(attention.linear[j], *(f"{name}.{part}.{letter}_proj" for letter in letters))
                linear(attention.linear[-1], f"{name}.{part}.out_proj")
                norm(attention.layer_norm, f"{name}.{part}_layer_norm")
            linear(layer.ffn.linear_0, f"{name}.fc1")
            linear(layer.ffn.linear_1, f"{name}.fc2")
            norm(layer.ffn.layer_norm, f"{name}.final_layer_norm")
    spec.decoder.start_from_zero_embedding = True
    spec.decoder.projection.weight = tensors.get(marian.OUTPUT, target)[:rows]
    bias = tensors[marian.BIAS][0].copy()
    bias[converted.pad_id] = PADDING_BIAS
    spec.decoder.projection.bias = bias[:rows]
