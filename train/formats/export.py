"""Export of runs: which formats there are, and a folder that is complete or absent."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from models import TransformerConfig
from npx.registry import Registry
from train.errors import UserError
from train.files import describe_path, disk_errors
from train.run.checkpoint import load_model
from train.run.config import RunConfig
from train.run.replace import hidden_name, remove_partial, replace_folder

# target -> a function that writes (model, tokenizer, run's configuration, dtype) as files of a folder
Writer = Callable[[Any, Any, RunConfig, Path, str], None]
TARGETS: Registry[Writer] = Registry("target")
DTYPES = ("float32", "float16", "int8")


def export_run(run: Path, target: str, out: Path, dtype: str, on_warning: Callable[[str], object]) -> None:
    """Write the model of a run in another format.

    Args:
        run: the run folder, or one checkpoint folder.
        target: a name in TARGETS.
        out: the folder to write, which must not exist or be empty; it is complete or absent.
        dtype: of the weights, one of DTYPES.
        on_warning: called with warnings about the run.

    Raises UserError for a folder that exists, and for a model or dtype that the format lacks.
    """
    if os.path.lexists(out) and not (out.is_dir() and not os.listdir(out)):
        raise UserError(f"{out}: expected a new folder; got {describe_path(out)}; try another --out")
    model, tokenizer, config = load_model(run, "", on_warning)
    out = Path(os.path.abspath(out))
    with disk_errors(str(out), "or another --out"):
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = hidden_name(out, "partial")
        try:
            remove_partial(partial)
            os.mkdir(partial)
            TARGETS[target](model, tokenizer, config, Path(partial), dtype)
            replace_folder(partial, out)
        finally:
            remove_partial(partial)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file in a fixed order of keys."""
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def write_tensors(path: Path, tensors: dict[str, Any], dtype: str, target: str) -> None:
    """Write a .safetensors file of float32 or float16. Raises UserError for another dtype."""
    if dtype == "int8":
        raise UserError(f"--dtype: expected float32 or float16 with --to {target}; got int8; try --to ctranslate2")
    arrays = {name: np.ascontiguousarray(array, dtype) for name, array in tensors.items()}
    save_file(arrays, path, metadata={"format": "pt"})


def weights_of(model: Any) -> dict[str, Any]:
    """Return the parameters of a model by name, float32."""
    return {name: array.astype(np.float32) for name, array in model.state_dict().items()}


@TARGETS.register("safetensors")
def write_safetensors(model: Any, tokenizer: Any, config: RunConfig, folder: Path, dtype: str) -> None:
    """Write our own parameters by name, the model's configuration and the tokenizer."""
    write_tensors(folder / "model.safetensors", weights_of(model), dtype, "safetensors")
    write_json(
        folder / "config.json", {"model_type": "npx-transformer", "task": config.data.task} | to_json(model.config)
    )
    tokenizer.save(folder / "tokenizer.json")


def to_json(c: TransformerConfig) -> dict[str, Any]:
    """Return a model's configuration as JSON content, without its open keys."""
    return {name: value for name, value in c.to_dict().items() if value is not None}
