"""Loads the model or ensemble that `translate` and `score --pairs` use."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from train.errors import UserError


def load_models(runs: Sequence[Path], on_warning: Callable[[str], object]) -> tuple[Any, Any, Any, str]:
    """Return (model, tokenizer, configuration, checkpoints) of one run, or of the ensemble of several runs.

    The configuration is the first run's; `checkpoints` names what was loaded; `on_warning` is that of `load_model`.
    Raises UserError if the runs have different tokenizers.
    """
    from models.search import Ensemble
    from train.run.checkpoint import load_with_origin

    loaded = [load_with_origin(run, "translation", on_warning) for run in runs]
    members, tokenizers, configs, origins = zip(*loaded, strict=True)
    for run, tokenizer in zip(runs, tokenizers, strict=True):
        if tokenizer.digest != tokenizers[0].digest:
            raise UserError(
                f"--model: expected runs with the same tokenizer; got different ones in {run} and {runs[0]}; try "
                f"training the model with --set data.tokenizer={runs[0] / 'tokenizer.json'}"
            )
    model = members[0] if len(members) == 1 else Ensemble(members)
    return model, tokenizers[0], configs[0], ", ".join(origin.path for origin in origins)
