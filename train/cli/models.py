"""Loads the model or ensemble that `translate` and `score --pairs` use."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from train.errors import UserError


def load_models(
    runs: Sequence[Path], on_warning: Callable[[str], object], on_load: Callable[[str], object] = lambda text: None
) -> tuple[Any, Any, Any]:
    """Return (model, tokenizer, configuration) of one run, or of the ensemble of several runs.

    The configuration is the first run's; `on_warning` and `on_load` are those of `load_model`. Raises UserError if the
    runs have different tokenizers.
    """
    from models.search import Ensemble
    from train.run.checkpoint import load_model

    loaded = [load_model(run, "translation", on_warning, on_load) for run in runs]
    members, tokenizers, configs = zip(*loaded, strict=True)
    for run, tokenizer in zip(runs, tokenizers, strict=True):
        if tokenizer.digest != tokenizers[0].digest:
            raise UserError(
                f"--model: expected runs with the same tokenizer; got different ones in {run} and {runs[0]}; try "
                f"training the model with --set data.tokenizer={runs[0] / 'tokenizer.json'}"
            )
    return (members[0] if len(members) == 1 else Ensemble(members)), tokenizers[0], configs[0]
