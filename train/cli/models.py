"""Load the models, runs, configuration files and presets that the user names on the command line."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from models import PRESETS, TransformerConfig
from train.errors import NoCheckpoint, UserError, quote
from train.files import MISSING
from train.run.config import RunConfig
from train.run.folder import RunFolder, not_a_run_error, similar_run
from train.run.toml_text import to_toml


def load_models(
    runs: Sequence[Path], on_warning: Callable[[str], object]
) -> tuple[Any, Any, RunConfig, tuple[Any, ...]]:
    """Return (model, tokenizer, configuration, origins) of one run, or of the ensemble of several runs.

    The configuration is that of the first run, and `origins` has the `Origin` of each run. `on_warning` is passed to
    `load_model`. Raises UserError if the runs have different tokenizers.
    """
    from models.search import Ensemble
    from train.run.checkpoint import load_with_origin

    loaded = [load_with_origin(run, "translation", on_warning) for run in runs]
    members, tokenizers, configs, origins = zip(*loaded, strict=True)
    for run, tokenizer in zip(runs, tokenizers, strict=True):
        if tokenizer.digest != tokenizers[0].digest:
            raise UserError(
                f"--model: expected runs with the same tokenizer; got different tokenizers in {run} and {runs[0]}; "
                f"try training one of them with --set data.tokenizer={quote(runs[0] / 'tokenizer.json')}"
            )
    model = members[0] if len(members) == 1 else Ensemble(members)
    return model, tokenizers[0], configs[0], origins


def resolve_model(
    model_spec: str, vocab_size: int | None, overrides: Sequence[str] = (), data: Path | None = None
) -> tuple[RunFolder | None, RunConfig, TransformerConfig]:
    """Return the run folder (or None) and the configurations of the run and of the model for `model_spec`.

    Args:
        model_spec: a run folder, a configuration file or the name of a preset.
        vocab_size: the value of --vocab-size, which a run does not accept; None leaves the configuration unchanged.
        overrides: `table.key=value` strings, as for --set.
        data: a folder written by `data`, as for `train --data`; ignored for a run.

    Raises UserError for any other `model_spec`, and for a run with --vocab-size.
    """
    from train.cli.train import load_config, use_data_folder
    from train.run.checkpoint import find_and_read
    from train.run.storage import model_config, read_state

    run = RunFolder(model_spec)
    if run.config_file.is_file():
        if vocab_size is not None:
            raise UserError(
                f"--vocab-size applies only to presets and configuration files; {model_spec} is a run with its own "
                "vocabulary; omit --vocab-size"
            )
        config = run.load_config(overrides)
        try:
            return run, config, model_config(find_and_read(model_spec, read_state)[1])
        except NoCheckpoint:
            return run, config, planned_model_config(config, run.tokenizer_file)
    if run.path.is_dir():
        raise not_a_run_error(run.path, "a run folder", "a folder without config.toml")
    if model_spec not in PRESETS and not run.path.is_file():
        similar = difflib.get_close_matches(model_spec, PRESETS, n=1) or [similar_run(run.path)]
        suggestion = similar[0] or "a folder that `train` has written, CONFIG.toml or a preset such as base"
        raise UserError(
            f"{model_spec}: expected a run folder, CONFIG.toml or a preset; got {MISSING}; try {suggestion}"
        )
    all_overrides = [*overrides, *([f"data.vocab_size={vocab_size}"] if vocab_size else ())]

    def read(folder_keys: Mapping[str, Any]) -> RunConfig:
        return load_config(
            model_spec, [*(f"data.{name}={to_toml(value)}" for name, value in folder_keys.items()), *all_overrides]
        )

    config = read({}) if data is None else use_data_folder(data, read, {}, None)[0]
    return None, config, planned_model_config(config)


def planned_model_config(config: RunConfig, tokenizer_file: Path | None = None) -> TransformerConfig:
    """Return the configuration of the model that `train` would build.

    Without the file of the tokenizer, the vocabulary has data.vocab_size tokens.
    """
    from train.learn.training import tokenizer_fields
    from train.tasks import TASKS

    task = TASKS[config.data.task]
    size = config.data.vocab_size
    if tokenizer_file and tokenizer_file.is_file():
        tokenizer = task.load_tokenizer(tokenizer_file)
        return config.transformer_config(tokenizer.vocab_size, **tokenizer_fields(tokenizer, config))
    has_two = task.has_separate_vocabularies(config.data)
    return config.transformer_config(size, **({"src_vocab_size": size} if has_two else {}))
