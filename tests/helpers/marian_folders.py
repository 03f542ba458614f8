"""Folders of tiny MarianMT models in Hugging Face's format, with random weights, written without transformers."""

import json
from functools import cache

import numpy as np
from safetensors.numpy import save_file

from train.formats.huggingface import CONFIG, GENERATION, TOKENIZER
from train.formats.weights import SAFETENSORS
from train.text.tokenizer import Tokenizer

TEXT = ["a dog runs", "a cat sleeps", "two dogs sleep"]
LAYERS = 1
SIZES = {"d_model": 8, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}


def write_folder(folder, **options):
    """Write a model with byte-level subwords; `options` are those of config.json. Returns its config."""
    folder.mkdir(parents=True)
    tokenizer = Tokenizer(tokenizer_spec(270))
    tokenizer.save(folder / TOKENIZER)
    values = {
        "model_type": "marian", "vocab_size": tokenizer.vocab_size, "encoder_layers": LAYERS, "decoder_layers": LAYERS,
        "activation_function": "swish", "scale_embedding": True, "pad_token_id": 0, "decoder_start_token_id": 0,
        "eos_token_id": 2, "share_encoder_decoder_embeddings": True, "tie_word_embeddings": True, **SIZES, **HEADS,
        **options,
    }  # fmt: skip
    write_json(folder / CONFIG, values)
    write_json(folder / GENERATION, {"num_beams": 3, "length_penalty": 0.7, "bad_words_ids": [[0], [5]]})
    save_file(tensors(values), folder / SAFETENSORS)
    return values


@cache
def tokenizer_spec(vocab_size):
    return Tokenizer.train_spec([TEXT], "bpe", vocab_size, "words")


def write_json(path, content):
    path.write_text(json.dumps(content), encoding="utf-8")


def tensors(c, seed=0):
    """Return the tensors of a model with this config.json."""
    rng, d, f, v = np.random.default_rng(seed), c["d_model"], c["encoder_ffn_dim"], c["vocab_size"]
    shapes = {"final_logits_bias": (1, v)}
    if c["share_encoder_decoder_embeddings"]:
        shapes["model.shared.weight"] = (v, d)
    else:
        shapes |= {f"model.{side}.embed_tokens.weight": (v, d) for side in ("encoder", "decoder")}
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (v, d)
    for side, attentions in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "encoder_attn"])):
        for i in range(c["encoder_layers"]):
            layer = f"model.{side}.layers.{i}"
            for attention in attentions:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    shapes |= {f"{layer}.{attention}.{part}.weight": (d, d), f"{layer}.{attention}.{part}.bias": (d,)}
            shapes |= {f"{layer}.fc1.weight": (f, d), f"{layer}.fc1.bias": (f,)}
            shapes |= {f"{layer}.fc2.weight": (d, f), f"{layer}.fc2.bias": (d,)}
            for norm in (*(f"{attention}_layer_norm" for attention in attentions), "final_layer_norm"):
                shapes |= {f"{layer}.{norm}.weight": (d,), f"{layer}.{norm}.bias": (d,)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
