"""Models in Marian's own format: parameters and settings in a .npz file, vocabularies in .yml or SentencePiece files.

The parameters get the names of Marian models in `transformers`, and marian.py imports them. Marian itself computes its
sinusoids with the rates of tensor2tensor and adds 1e-6 to the variance in its norms. Its vocabulary has no padding, so
a token with a row of zeros is added. The decoder's first input, a vector of zeros, is then the embedding of padding.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from train.errors import UserError, one_line, pip_install
from train.files import open_for_reading
from train.formats import marian
from train.formats.archive import open_archive, open_untrusted
from train.formats.huggingface import SENTENCEPIECE, UNKNOWN, ImportedModel, make_model_config
from train.formats.marian_folder import PADDING_BIAS
from train.formats.settings import TRY_SUPPORTED
from train.text.pair_tokenizer import PairTokenizer
from train.text.sentencepiece_tokenizer import SentencePieceTokenizer, load_engine
from train.text.tokenizer import SpecialIds

MODEL_YML, DECODER = "special:model.yml", "decoder.yml"
EPSILON = 1e-6  # epsilon of the layer norms in Marian itself
PAD, EOS = "<pad>", "</s>"
ACTIVATIONS = {"swish": "silu", "relu": "relu"}
NAMES = {
    "d_model": "dim-emb", "d_ff": "transformer-dim-ffn", "n_heads": "transformer-heads", "n_layers": "enc-depth",
    "dropout": "transformer-dropout", "attention_dropout": "transformer-dropout-attention",
    "activation_dropout": "transformer-dropout-ffn",
}  # fmt: skip
SUPPORTED_VALUES = {  # maps a setting to the values that our model supports, the default first
    "type": ("transformer",), "transformer-decoder-autoreg": ("self-attention",), "transformer-ffn-depth": ("2",),
    "transformer-no-projection": ("false",), "transformer-train-position-embeddings": ("false",),
    "transformer-postprocess-emb": ("d", ""), "right-left": ("false",),
}  # fmt: skip
TEXT_SETTINGS = {
    *SUPPORTED_VALUES, *NAMES.values(), "dec-depth", "transformer-preprocess", "transformer-postprocess",
    "transformer-postprocess-top", "transformer-ffn-activation",
}  # fmt: skip
PLACEMENTS = {("", "dan", ""): "post", ("n", "da", "n"): "pre"}  # preprocess, postprocess, postprocess-top
HEADER = re.compile(  # matches the header of a .npy file in version 1.0
    rb"\x93NUMPY\x01\x00..\{'descr': '([<|][fiub]\d)', 'fortran_order': (True|False), "
    rb"'shape': \(([\d, ]{,99})\), \} *\n",
    re.DOTALL,
)
LAYER = re.compile(r"(encoder|decoder)_l(\d+)_(self|context|ffn)_(\w+)")
NORM = re.compile(r"(?:Wo|ffn)_ln_(scale|bias)(?:_pre)?")
SUBLAYERS = {"self": "self_attn", "context": "encoder_attn", "ffn": "final"}
EMBEDDINGS = {"Wemb": marian.SHARED, "encoder_Wemb": marian.SOURCE, "decoder_Wemb": marian.TARGET}
OUTPUT = "decoder_ff_logit_out_"
TABLES = (*EMBEDDINGS.values(), marian.OUTPUT)  # tensors with a row for each token


def find_npz(folder: Path) -> Path | None:
    """Return the .npz file of a folder, or None. Raises UserError if the folder has several .npz files."""
    files = sorted(folder.glob("*.npz"))
    if len(files) > 1:
        raise UserError(f"{folder}: expected one .npz file; got {len(files)}; try a folder with a single .npz file")
    return files[0] if files else None


def read_npz(path: Path, on_warning: Callable[[str], object]) -> ImportedModel:
    """Read the model of a .npz file and the vocabularies in its folder. Raises UserError for unsupported features.

    Args:
        on_warning: called with a message for each search setting that has no counterpart here.
    """
    arrays = read_arrays(path)
    if MODEL_YML not in arrays:
        raise UserError(f"{path}: {MODEL_YML}, which Marian writes, is missing; try a model that Marian has saved")
    text = arrays.pop(MODEL_YML).tobytes().rstrip(b"\0").decode("utf-8", "replace")
    config = read_yaml(text, f"{path}: {MODEL_YML}")
    keys = read_model_keys(config, f"{path}: {MODEL_YML}")
    is_shared = "Wemb" in arrays
    is_tied = not any(OUTPUT + name in arrays for name in ("W", "Wt"))
    keys["tying"] = ("all" if is_shared else "output") if is_tied else "none"
    decoder = path.with_name(DECODER)
    decoder_config = read_yaml(decoder.read_text("utf-8", "replace"), str(decoder)) if decoder.exists() else {}
    tokenizer, n_tokens = read_marian_tokenizer(path.parent, decoder_config, is_shared)
    model_config = make_model_config(path, tokenizer, keys, {}, NAMES)
    if decoder_config.get("allow-unk", "false") != "true":
        model_config = replace(model_config, suppressed_ids=(tokenizer.special_ids.unk_id,))
    if read_number(decoder_config, "word-penalty", float, 0.0, str(decoder)):
        on_warning(f"{decoder}: word-penalty has no counterpart and is ignored; translations may differ in length")
    tables = {"model": keys, "data": {"vocabularies": "shared" if is_shared else "separate"}}
    beam = read_number(decoder_config, "beam-size", int, 12, str(decoder))
    search = {
        "beam_size": beam,
        "length_penalty_type": "length",
        "length_penalty": read_number(decoder_config, "normalize", float, 0.0, str(decoder)),
        "candidate_rule": "plain" if beam == 1 else "transformers",  # one beam is greedy search
    }
    source_keys = {
        ("search", "beam_size"): (decoder, "beam-size"),
        ("search", "length_penalty"): (decoder, "normalize"),
    }
    weights = dict(map(in_transformers_layout, arrays, arrays.values()))
    parameters = marian.from_marian(with_padding(weights, n_tokens, tokenizer.vocab_size), model_config, str(path))
    return ImportedModel(model_config, {**tables, "search": search}, source_keys, tokenizer, parameters)


def read_arrays(path: Path) -> dict[str, Any]:
    """Return the arrays of a .npz file by name. Raises UserError for a damaged file."""
    with open_untrusted(path, "a Marian model") as file, open_archive(file) as archive:
        content = {name.removesuffix(".npy"): decode_npy(archive.read(name)) for name in archive.namelist()}
    for name, array in content.items():
        if name != MODEL_YML and array.dtype.kind != "f":
            raise UserError(f"{path}: {name}: expected floats; got {array.dtype}; try the unquantized model")
    return content


def decode_npy(content: bytes) -> Any:
    """Return the array of numbers in a .npy file as a view of its bytes.

    Raises ValueError or TypeError for invalid content.

    np.load would evaluate the header as Python, and allocate an array of the stated shape before reading any values.
    """
    if not (header := HEADER.match(content)):
        raise ValueError("a file that is not an array of numbers")
    dtype, order, shape = (group.decode() for group in header.groups())
    sizes = [int(size) for size in shape.split(",") if size.strip()]
    return np.frombuffer(content, dtype, offset=header.end()).reshape(sizes, order="F" if order == "True" else "C")


def read_model_keys(config: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return the keys of [model] except `tying`. Raises UserError, naming the setting, for unsupported features."""
    for key, value in config.items():
        if key in TEXT_SETTINGS and not isinstance(value, str):
            raise UserError(f"{name}: {key}: expected one value; got {value}; try a new download")
    for key, values in SUPPORTED_VALUES.items():
        if config.get(key, values[0]) not in values:
            raise UserError(f"{name}: {key}: expected {values[0]}; got {config[key]}; {TRY_SUPPORTED}")
    placement = tuple(
        config.get(f"transformer-{key}", default)
        for key, default in (("preprocess", ""), ("postprocess", "dan"), ("postprocess-top", ""))
    )
    if placement not in PLACEMENTS:
        raise UserError(
            f"{name}: transformer-preprocess: expected norms after each sub-layer ('', dan, '') or before it (n, da, "
            f"n); got {placement}; {TRY_SUPPORTED}"
        )
    activation = config.get("transformer-ffn-activation", "swish")
    if activation not in ACTIVATIONS:  # Marian's gelu is not supported: it is x * sigmoid(1.702 * x)
        expected = " or ".join(ACTIVATIONS)
        raise UserError(f"{name}: transformer-ffn-activation: expected {expected}; got {activation}; {TRY_SUPPORTED}")
    if config.get("enc-depth") != config.get("dec-depth"):
        raise UserError(
            f"{name}: dec-depth: expected {config.get('enc-depth')}, the same as enc-depth; got "
            f"{config.get('dec-depth')}; {TRY_SUPPORTED}"
        )
    keys: dict[str, Any] = {
        ours: read_number(config, theirs, float if "dropout" in ours else int, 0.0 if "dropout" in ours else None, name)
        for ours, theirs in NAMES.items()
    }
    return keys | {
        "norm_placement": PLACEMENTS[placement], "norm_eps": EPSILON, "attention_bias": True, "output_bias": True,
        "activation": ACTIVATIONS[activation], "scale_embedding": True, "positions": "sinusoidal_halves",
        "position_rates": "tensor2tensor", "decoder_start": "pad",
    }  # fmt: skip


def read_number(config: Mapping[str, str], key: str, kind: type, default: Any, name: str) -> Any:
    """Return the number at a key of the file `name`. Raises UserError for any other value."""
    text = config.get(key)
    try:
        return kind(text) if text is not None or default is None else default
    except (TypeError, ValueError):
        raise UserError(f"{name}: {key}: expected a number; got {text!r}; try a new download") from None


def in_transformers_layout(name: str, array: Any) -> tuple[str, Any]:
    """Return a parameter with its name and layout in transformers; an unknown parameter is returned unchanged."""
    if name in EMBEDDINGS:
        return EMBEDDINGS[name], array
    if name.startswith(OUTPUT):
        names = {"W": (marian.OUTPUT, array.T), "Wt": (marian.OUTPUT, array), "b": (marian.BIAS, array)}
        return names.get(name.removeprefix(OUTPUT), (name, array))
    if match := re.fullmatch(r"(encoder|decoder)_top_ln_(scale|bias)", name):
        return f"model.{match[1]}.layer_norm.{'weight' if match[2] == 'scale' else 'bias'}", array.reshape(-1)
    if not (match := LAYER.fullmatch(name)):
        return name, array
    side, number_of_layer, sublayer, rest = match.groups()
    prefix = f"model.{side}.layers.{int(number_of_layer) - 1}"
    if norm := NORM.fullmatch(rest):
        part = "weight" if norm[1] == "scale" else "bias"
        return f"{prefix}.{SUBLAYERS[sublayer]}_layer_norm.{part}", array.reshape(-1)
    if not re.fullmatch("[Wb][12]" if sublayer == "ffn" else "[Wb][qkvo]", rest):
        return name, array
    projection = f"fc{rest[1]}" if sublayer == "ffn" else f"{SUBLAYERS[sublayer]}.{rest[1]}_proj"
    projection = projection.replace(".o_proj", ".out_proj")
    return (
        (f"{prefix}.{projection}.weight", array.T)
        if rest[0] == "W"
        else (f"{prefix}.{projection}.bias", array.reshape(-1))
    )


def with_padding(weights: Mapping[str, Any], n_tokens: tuple[int, int], size: int) -> dict[str, Any]:
    """Return the weights with each table extended to `size` rows: tokens that Marian lacks get rows of zeros.

    The output bias prevents these tokens from being predicted.

    Args:
        n_tokens: sizes of Marian's source and target vocabularies. A table of any other size is left unchanged, and a
            later check rejects it.
    """
    result = dict(weights)
    for name in TABLES:
        n = n_tokens[0] if name == marian.SOURCE else n_tokens[1]
        if name in result and result[name].ndim == 2 and len(result[name]) == n:
            result[name] = np.pad(result[name], ((0, size - n), (0, 0)))
    bias = result.get(marian.BIAS, np.zeros((1, n_tokens[1]), np.float32))
    if bias.shape == (1, n_tokens[1]):
        bias = np.pad(bias, ((0, 0), (0, size - n_tokens[1])), constant_values=PADDING_BIAS)
    return result | {marian.BIAS: bias}


# ---- vocabularies


def read_yaml(text: str, name: str) -> dict[str, Any]:
    """Return the mapping in a YAML text; scalars remain strings. Raises UserError if the text is not a mapping."""
    try:
        import yaml
    except ImportError:
        raise UserError(f"{name}: the package pyyaml is not installed; try {pip_install('formats')}") from None
    try:
        content = yaml.load(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UserError(f"{name}: expected YAML; got '{one_line(error)}'; try a new download") from None
    if not isinstance(content, dict):
        raise UserError(f"{name}: expected keys with values; got {type(content).__name__}; try a new download")
    return content


def read_marian_tokenizer(
    folder: Path, decoder_config: Mapping[str, Any], is_shared: bool
) -> tuple[PairTokenizer, tuple[int, int]]:
    """Return the tokenizer and the sizes of Marian's two vocabularies. Raises UserError for inconsistent files.

    Args:
        decoder_config: content of decoder.yml, which names the vocabularies. If it contains no valid names, the
            vocabularies are found by file extension.
    """
    names = decoder_config.get("vocabs")
    if isinstance(names, list) and names and all(isinstance(name, str) and name.isprintable() for name in names):
        files = [folder / Path(name).name for name in names]
    else:
        others = {folder / name for name in (*SENTENCEPIECE, DECODER)}
        files = [file for file in sorted(folder.glob("*.yml")) if file not in others and ".npz." not in file.name]
        files = files or [file for file in sorted(folder.glob("*.spm")) if file not in others]
    if not files or (len(files) < 2 and not is_shared):
        expected = "a vocabulary" if is_shared else f"two vocabularies, named in {DECODER}"
        raise UserError(
            f"{folder}: expected {expected} (.yml or .spm); got {len(files)}; try downloading all files of the model"
        )
    sides = []
    for file, model in zip((files[0], files[-1]), SENTENCEPIECE, strict=True):
        with open_for_reading(file, "a vocabulary") as stream:
            content = stream.read()
        if file.suffix == ".spm":
            engine = load_engine(content, str(file))
            vocabulary = {engine.id_to_piece(i): i for i in range(engine.get_piece_size())}
        else:
            ids = read_yaml(content.decode("utf-8", "replace"), str(file))
            vocabulary = {token: read_number(ids, token, int, None, str(file)) for token in ids}
            with open_for_reading(folder / model, "a SentencePiece model") as stream:
                content = stream.read()
        for token in (EOS, UNKNOWN):
            if token not in vocabulary:
                raise UserError(
                    f"{file}: expected a vocabulary with {token}; this token is missing; try a new download"
                )
        if PAD in vocabulary:
            raise UserError(
                f"{file}: expected a vocabulary without {PAD}, because Marian has no padding token; "
                f"got {PAD}; {TRY_SUPPORTED}"
            )
        sides.append((content, vocabulary, file))
    n_tokens = len(sides[0][1]), len(sides[1][1])
    pad = max(n_tokens)
    tokenizers = []
    for content, vocabulary, file in sides:
        unused = {f"<unused{i}>": i for i in range(len(vocabulary), pad)}  # padding has the same id on both sides
        special_ids = SpecialIds(pad, pad, vocabulary[EOS], vocabulary[UNKNOWN])
        tokenizers.append(SentencePieceTokenizer(content, vocabulary | unused | {PAD: pad}, special_ids, str(file)))
    return PairTokenizer(tokenizers[0], tokenizers[1], str(folder), shared=is_shared), n_tokens
