"""Folders of tiny MarianMT models in Hugging Face's format, with random weights, written without transformers."""

import json
import math
import pickle
import struct
import zipfile
from functools import cache

import numpy as np
from safetensors.numpy import save_file

from train.formats.huggingface import CONFIG, GENERATION, TOKENIZER
from train.formats.torch_file import LEGACY_MAGIC
from train.formats.weights import SAFETENSORS
from train.text.tokenizer import Tokenizer

TEXT = ["a dog runs", "a cat sleeps", "two dogs sleep"]
LAYERS = 1
SIZES = {"d_model": 8, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}


class WordEngine:
    """A fake of SentencePiece whose pieces are words."""

    def encode(self, texts, **options):
        return [text.split() for text in texts]

    def decode_pieces(self, pieces):
        return " ".join(pieces)


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


ACTIVATIONS = {
    "swish": lambda x: x / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * np.vectorize(lambda z: math.erfc(-z / math.sqrt(2)) / 2)(x),
    "gelu_new": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


def reference_logits(w, c, src, tgt):
    """Compute the logits (T, V) of one pair of sentences in plain NumPy, as modeling_marian.py does."""
    d, heads, activation = c["d_model"], c["encoder_attention_heads"], ACTIVATIONS[c["activation_function"]]

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def attention(x, memory, name, causal):
        q, k, v = (
            linear(y, f"{name}.{p}_proj").reshape(len(y), heads, -1).transpose(1, 0, 2)
            for y, p in ((x, "q"), (memory, "k"), (memory, "v"))
        )
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(d / heads)
        if causal:
            scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        y = (p / p.sum(-1, keepdims=True)) @ v
        return linear(y.transpose(1, 0, 2).reshape(len(x), d), f"{name}.out_proj")

    def embed(ids, table, side):
        positions = w.get(f"model.{side}.embed_positions.weight")
        if positions is not None:
            return table[ids] * (np.sqrt(d) if c["scale_embedding"] else 1) + positions[: len(ids)]
        angles = np.arange(len(ids))[:, None] / 10000 ** (2 * np.arange(d // 2) / d)
        scale = np.sqrt(d) if c["scale_embedding"] else 1
        return table[ids] * scale + np.concatenate([np.sin(angles), np.cos(angles)], 1)

    w = {name: value.astype(float) for name, value in w.items()}
    source = w.get("model.encoder.embed_tokens.weight", w.get("model.shared.weight"))
    target = w.get("model.decoder.embed_tokens.weight", source)
    x, y = embed(src, source, "encoder"), embed(tgt, target, "decoder")
    for i in range(c["encoder_layers"]):
        name = f"model.encoder.layers.{i}"
        x = norm(x + attention(x, x, f"{name}.self_attn", False), f"{name}.self_attn_layer_norm")
        x = norm(x + linear(activation(linear(x, f"{name}.fc1")), f"{name}.fc2"), f"{name}.final_layer_norm")
    for i in range(c["decoder_layers"]):
        name = f"model.decoder.layers.{i}"
        y = norm(y + attention(y, y, f"{name}.self_attn", True), f"{name}.self_attn_layer_norm")
        y = norm(y + attention(y, x, f"{name}.encoder_attn", False), f"{name}.encoder_attn_layer_norm")
        y = norm(y + linear(activation(linear(y, f"{name}.fc1")), f"{name}.fc2"), f"{name}.final_layer_norm")
    return y @ w.get("lm_head.weight", target).T + w["final_logits_bias"]


def write_npz(folder, tensors, settings=(), **decoder):
    """Write the tensors of transformers' Marian, whose last token is padding, as Marian's own model.npz.

    Args:
        settings: changes to the settings in the file; a value of None removes a setting.
        decoder: content of decoder.yml.
    """

    def yaml(values):
        return "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items())

    folder.mkdir(parents=True, exist_ok=True)
    arrays = dict(npz_array(name, array) for name, array in tensors.items() if "embed_positions" not in name)
    if "Wemb" in arrays:
        arrays = {name: array for name, array in arrays.items() if name not in ("encoder_Wemb", "decoder_Wemb")}
    depth = len([name for name in arrays if name.startswith("encoder_l") and name.endswith("self_Wq")])
    table = arrays.get("Wemb", arrays.get("decoder_Wemb"))
    values = {
        "type": "transformer", "dim-emb": table.shape[1], "transformer-dim-ffn": arrays["encoder_l1_ffn_W1"].shape[1],
        "transformer-heads": 2, "enc-depth": depth, "dec-depth": depth, "transformer-ffn-activation": "swish",
        "transformer-preprocess": "", "transformer-postprocess": "dan", "transformer-postprocess-emb": "d",
        "version": "v1.7.6", "lemma-dim-emb": 0, "tied-embeddings-all": True,
    } | dict(settings)  # fmt: skip
    text = yaml({key: value for key, value in values.items() if value is not None}) + "\0"
    arrays["special:model.yml"] = np.frombuffer(text.encode(), np.int8)
    np.savez(folder / "model.npz", **arrays)
    (folder / "decoder.yml").write_text(yaml({"models": ["model.npz"], **decoder}), encoding="utf-8")


def write_torch(path, tensors, legacy=False):
    """Write tensors of float32 as a PyTorch file, without PyTorch; `legacy` is the format before PyTorch 1.6."""

    def text(value):
        return b"X" + struct.pack("<i", len(value)) + value.encode()

    def numbers(*values):
        return b"(" + b"".join(b"J" + struct.pack("<i", value) for value in values) + b"t"

    content = b"\x80\x02}("
    for key, (name, array) in enumerate(tensors.items()):
        storage = text("storage") + b"ctorch\nFloatStorage\n" + text(str(key)) + text("cpu")
        storage += b"J" + struct.pack("<i", array.size)
        content += text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n((" + storage + b"tQK\0"
        content += numbers(*array.shape) + numbers(*(stride // 4 for stride in array.strides)) + b"\x89NtR"
    content += b"u."
    if legacy:
        before = b"".join(pickle.dumps(value, 2) for value in (LEGACY_MAGIC, 1001, {"little_endian": True}))
        values = b"".join(array.size.to_bytes(8, "little") + array.tobytes() for array in tensors.values())
        path.write_bytes(before + content + pickle.dumps([str(key) for key in range(len(tensors))], 2) + values)
        return
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        for key, array in enumerate(tensors.values()):
            archive.writestr(f"archive/data/{key}", array.tobytes())


def npz_array(name, array):
    """Return the name and the array that a tensor has in Marian's own format."""
    tables = {"model.shared.weight": "Wemb", "model.encoder.embed_tokens.weight": "encoder_Wemb"}
    tables |= {"model.decoder.embed_tokens.weight": "decoder_Wemb", "lm_head.weight": "decoder_ff_logit_out_Wt"}
    if name in tables:
        return tables[name], array[:-1]
    if name == "final_logits_bias":
        return "decoder_ff_logit_out_b", array[:, :-1]
    _, side, _, layer, *path, kind = name.split(".")
    prefix, joined = f"{side}_l{int(layer) + 1}", ".".join(path)
    for theirs, ours in {"self_attn": "self", "encoder_attn": "context", "final": "ffn"}.items():
        if joined == f"{theirs}_layer_norm":
            part = "ffn" if theirs == "final" else "Wo"
            return f"{prefix}_{ours}_{part}_ln_{'scale' if kind == 'weight' else 'bias'}", array[None]
        if joined.startswith(f"{theirs}."):
            ending = path[1].removesuffix("_proj").replace("out", "o")
            return matrix_or_bias(f"{prefix}_{ours}", kind, ending, array)
    return matrix_or_bias(f"{prefix}_ffn", kind, joined[-1], array)


def matrix_or_bias(prefix, kind, ending, array):
    return (f"{prefix}_W{ending}", array.T) if kind == "weight" else (f"{prefix}_b{ending}", array[None])


def nest_members(path):
    """Add a member to a zip file that contains all others, so that their bytes belong to two members."""
    content, name = path.read_bytes(), "archive/data/1"
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content)
        for member in members:
            member.header_offset += zipfile.sizeFileHeader + len(name)
            archive.filelist.append(member)
            archive.NameToInfo[member.filename] = member


def patch_archive(path, signature, offset, value):
    """Replace bytes of the first record of a zip file with this signature."""
    content = bytearray(path.read_bytes())
    at = content.index(signature) + offset
    content[at : at + len(value)] = value
    path.write_bytes(content)


DIRECTORY, END = b"PK\x01\x02", b"PK\x05\x06"  # signatures in a zip file
# Damage to a zip file, and the words that report it; those for a negative offset depend on the version of Python.
BAD_ARCHIVES = {
    "nested": (nest_members, "overlapping data"),
    "encrypted": (lambda path: patch_archive(path, DIRECTORY, 8, b"\x01"), "is encrypted"),
    "patched": (lambda path: patch_archive(path, DIRECTORY, 8, b"\x20"), "compressed patched data (flag bit 5)"),
    "version": (lambda path: patch_archive(path, DIRECTORY, 6, b"\xff"), "zip file version 25.5"),
    "negative offset": (lambda path: patch_archive(path, END, 16, b"\xff\xff\xff\x7f"), ""),
}
