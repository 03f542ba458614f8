"""Export runs: list the formats, check a model, and write the output folder atomically."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

import npx
from models import TransformerConfig, sinusoids
from models.layers.positions import resolve_rate_scheme
from npx.registry import Registry
from train.errors import UserError
from train.files import MISSING, describe_path, disk_errors
from train.json_files import check_outside_run
from train.run.checkpoint import load_model
from train.run.config import RunConfig
from train.run.folder_swap import new_folder
from train.tasks.task import describe_model

# A function that writes files to a folder. Its arguments are a model, its tokenizer, the run's configuration, the
# folder and the dtype of the weights.
Writer = Callable[[Any, Any, RunConfig, Path, str], None]
WRITERS: Registry[Writer] = Registry("format")
WRITER_TASKS = {  # the tasks whose models a format can represent; other formats represent models of all tasks
    "huggingface": ("translation", "language"), **dict.fromkeys(("ctranslate2", "onnx"), ("translation",)),
}  # fmt: skip
# The values of [search] that the beam search of a format's program implements.
SEARCHES: dict[str, dict[str, tuple[str, ...]]] = {
    "huggingface": {"length_penalty_type": ("length",), "candidate_rule": ("transformers", "fairseq")},
    "ctranslate2": {"length_penalty_type": ("length",), "candidate_rule": ("fairseq",)},
}
DTYPES = ("float32", "float16", "int8")
# Model fields that need no check: sizes, ids, training settings (such as initialization and dropout), and fields that
# have no effect for the architectures and positions that the formats support.
UNCHECKED = frozenset(
    "vocab_size src_vocab_size d_model d_ff n_layers pad_id bos_id eos_id unk_id suppressed_ids "
    "attention_gain embedding_init matrix_init dropout attention_dropout activation_dropout word_dropout "
    "stochastic_depth experts_per_token balance_loss_weight position_rates max_positions relative_buckets "
    "max_relative_distance attention_bias norm_eps tying scale_embedding decoder_start target_space cell "
    "kernel_width token_types embedding_norm pooler output_transform".split()
)


def export_run(run: Path, format_name: str, out: Path, dtype: str, on_warning: Callable[[str], object]) -> None:
    """Write the model of a run in another format.

    Args:
        run: the run folder, or one checkpoint folder.
        format_name: a name in WRITERS.
        out: the folder to write, which must be missing or empty; it is written atomically.
        dtype: dtype of the weights, one of DTYPES.
        on_warning: called with warnings about the run.

    Raises UserError for a folder that exists, and for a model or dtype that the format does not support.
    """
    got = "a symbolic link" if os.path.islink(out) else describe_path(out)
    if got not in (MISSING, "an empty folder"):
        raise UserError(f"{out}: expected a new folder; got {got}; try another --out")
    model, tokenizer, config = load_model(run, "", on_warning)
    check_outside_run(out, models=[run])
    if (task := config.data.task) not in (tasks := WRITER_TASKS.get(format_name, (task,))):
        got = f"{describe_model(task)}; try --to safetensors"
        raise UserError(f"{run}: expected {describe_model(*tasks)} for --to {format_name}; got {got}")
    if format_name == "ctranslate2" and model.config.suppressed_ids:
        on_warning(f"{out}: forbidden tokens are not part of CTranslate2's format; try its option suppress_sequences")
    out = Path(os.path.abspath(out))
    with disk_errors(str(out), "or another --out"), new_folder(out, must_be_new=True) as partial:
        WRITERS[format_name](model, tokenizer, config, Path(partial), dtype)
    if task == "translation":
        warn_of_search(config, format_name, on_warning)


def warn_of_search(config: RunConfig, format_name: str, on_warning: Callable[[str], object]) -> None:
    """Warn if the beam search of the format's program lacks the run's search settings."""
    search, wanted = config.search, SEARCHES.get(format_name, {})
    if wanted and search.beam_size == 1:  # the other programs search greedily, so scores do not matter
        wanted = {"candidate_rule": ("plain", "fairseq")}
    keys = [key for key, values in wanted.items() if getattr(search, key) not in values]
    if search.length_penalty == 0.0:
        keys = [key for key in keys if key != "length_penalty_type"]
    if keys:
        present = " and ".join(f"search.{key} = {getattr(search, key)}" for key in keys)
        suggestion = " and ".join(f'{key} = "{wanted[key][0]}"' for key in keys)
        on_warning(
            f"{format_name} has no equivalent of {present}, so some of its translations will differ from those of "
            f"`translate`; for identical translations, try {suggestion} in [search] of the run's config.toml"
        )


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file with a fixed order of keys."""
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def write_tensors(path: Path, tensors: dict[str, Any], dtype: str, format_name: str) -> None:
    """Write a .safetensors file of float32 or float16. Raises UserError for int8."""
    if dtype == "int8":
        raise UserError(f"--dtype: expected float32 or float16 with --to {format_name}; got int8; try --to ctranslate2")
    check_range(tensors, dtype)
    arrays = {name: np.ascontiguousarray(array, dtype) for name, array in tensors.items()}
    path.write_bytes(save(arrays, {"format": "pt"}))  # save_file makes the file unreadable for other users


def check_range(tensors: Mapping[str, Any], dtype: str) -> None:
    """Raise UserError for a value that overflows to infinity in a floating dtype."""
    limit = np.finfo(dtype).max
    for name, array in tensors.items():
        if (largest := np.abs(array).max(initial=0)) > limit:
            raise UserError(
                f"--dtype: expected {name} within {limit:g}, the range of {dtype}; got {largest:g}; try float32"
            )


def unsupported_fields(config: TransformerConfig, allowed: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, str]]:
    """Yield each model field with a value that the format does not support, and the supported values in words.

    A field that is neither in `allowed` nor in UNCHECKED must have its default value. A new field must therefore be
    listed before a model that changes it can be exported. Unless `allowed` has other values, the size of a head is
    d_model / n_heads.
    """
    head_sizes = dict.fromkeys(("d_k", "d_v"), (None, config.d_model // config.n_heads))
    divisors = [n for n in range(1, config.d_model + 1) if config.d_model % n == 0]
    allowed = {"n_heads": divisors, "n_kv_heads": (None, config.n_heads), **head_sizes, **allowed}
    for field in fields(config):
        values = allowed.get(field.name, (field.default,))
        if field.name not in UNCHECKED and getattr(config, field.name) not in values:
            words = " or ".join("unset" if value is None else str(value) for value in values)
            yield field.name, words if None in values else f"= {words}"


def check_supported(
    config: TransformerConfig,
    format_name: str,
    allowed: Mapping[str, Sequence[Any]],
    suggestion: str = "--to safetensors",
) -> None:
    """Raise UserError, naming the first of the `unsupported_fields`."""
    for name, words in unsupported_fields(config, allowed):
        raise UserError(
            f"export: expected model.{name} {words}, because {format_name} supports nothing else; "
            f"got {getattr(config, name)}; try {suggestion}"
        )


def weights_of(model: Any) -> dict[str, Any]:
    """Return the parameters of a model by name, in float32."""
    return {name: array.astype(np.float32) for name, array in model.state_dict().items()}


def sinusoids_of(config: TransformerConfig, n_positions: int) -> Any:
    """Return the sinusoids (n_positions, D) of a model on the host."""
    interleaved = config.positions != "sinusoidal_halves"
    rate_scheme = resolve_rate_scheme(interleaved, config.position_rates)
    return npx.to_host(sinusoids(n_positions, config.d_model, interleaved, rate_scheme=rate_scheme))


@WRITERS.register("safetensors")
def write_safetensors(model: Any, tokenizer: Any, config: RunConfig, folder: Path, dtype: str) -> None:
    """Write our own parameters by name, the model's configuration and the tokenizer."""
    write_tensors(folder / "model.safetensors", weights_of(model), dtype, "safetensors")
    write_json(
        folder / "config.json", {"model_type": "npx-transformer", "task": config.data.task} | to_json(model.config)
    )
    tokenizer.save(folder / "tokenizer.json")


def to_json(config: TransformerConfig) -> dict[str, Any]:
    """Return a model's configuration as JSON content, without keys that are None."""
    return {name: value for name, value in config.to_dict().items() if value is not None}
