"""Copy initial weights from another run (train.init), and exclude parameters from training (train.freeze).

Both keys select parameters by patterns: comma-separated names in which `*` matches any text, as in "encoder.*, *.bias".
"""

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Any

import npx
from models import ARCHITECTURES, Module
from models.architectures.base import SequenceModel
from models.config import TransformerConfig
from models.fields import keys_of, value_type
from models.layers.positions import resolve_rate_scheme
from train.errors import UserError, nearest
from train.run.checkpoint import MODEL, check_siblings, load_weights, run_files, task_of, warn_of_old_average
from train.run.storage import mismatches, model_config
from train.run.toml_text import to_toml
from train.tasks.protocols import TextTokenizer

MAX_LISTED, MAX_PATTERNS = 3, 8  # maximum number of parameters, and of patterns, in a message
UNSET = "unset"  # in messages, the value None of a key
# These keys of [model] change what a model computes but not the shapes of its weights.
COMPUTATION_KEYS = (
    "n_heads", "norm_placement", "positions", "max_relative_distance", "activation", "norm_type",
    "norm_eps", "decoder_start", "experts_per_token", "scale_embedding", "attention_window",
)  # fmt: skip


def select_parameters(key: str, patterns: str, names: Iterable[str]) -> list[str]:
    """Return the names that match a pattern of the configuration key `key`, in their original order.

    Raises UserError for a pattern that matches no name.
    """
    names = list(names)
    parts = [part.strip() for part in patterns.split(",") if part.strip()] or [patterns] * bool(patterns)
    for part in parts:
        if not any(fnmatchcase(name, part) for name in names):
            groups = sorted({name.split(".")[0] for name in names})
            raise UserError(
                f"{key}: expected patterns that match parameters ({'.*, '.join(groups)}.*); got '{part}', which "
                f"matches no parameter; try {nearest(part if '*' in part else f'{part}.*', patterns_of(names))}"
            )
    return [name for name in names if any(fnmatchcase(name, part) for part in parts)]


def patterns_of(names: Iterable[str]) -> set[str]:
    """Return the names of parameters, and the patterns of modules (encoder.0.*) and of last names (*.bias)."""
    modules = {f"{name[: dot.start()]}.*" for name in names for dot in re.finditer(r"\.", name)}
    return {*names, *modules, *(f"*.{name.rpartition('.')[2]}" for name in names)}


def select_frozen(patterns: str, names: Collection[str]) -> list[str]:
    """Return the names that match `patterns` of train.freeze. Raises UserError if all names match."""
    frozen = select_parameters("train.freeze", patterns, names)
    if len(frozen) == len(names):
        raise UserError(
            "train.freeze: expected patterns that leave some parameters to train; got patterns that match all "
            f"{len(names)} of them; try fewer patterns"
        )
    return frozen


def freeze(model: Module, patterns: str) -> None:
    """Exclude the parameters that match `patterns` from training. Raises UserError if all of them match."""
    parameters = dict(model.named_parameters())
    for name in select_frozen(patterns, parameters):
        parameters[name].requires_grad = False


def warm_start(
    model: SequenceModel,
    source: str,
    patterns: str,
    tokenizer: TextTokenizer,
    on_warning: Callable[[str], object] = warnings.warn,
) -> str:
    """Copy weights of another run into a model, and return a line that says which ones.

    Args:
        model: the model, whose parameters are not yet in a flat buffer.
        source: a run (its averaged, best or newest checkpoint is read) or a checkpoint folder.
        patterns: the parameters to copy. "" copies all parameters or, if the two runs have different labels, all except
            `label_parameters`. With "", both models must have the same parameters and compute the same function.
        tokenizer: the tokenizer of the new run.
        on_warning: called with a message if the source's average is older than its newest checkpoint, or if weights
            selected by patterns come from a model that computes another function.

    Raises UserError if a parameter is missing or has another shape, if the models compute different functions, if the
    parameters of a different vocabulary or of different labels would be copied, if a pattern matches nothing, or if the
    checkpoint cannot be read.
    """
    folder, checkpoint = load_weights(source, on_warning)
    check_siblings(folder, checkpoint.state)
    parameters = dict(model.named_parameters())
    weights = checkpoint.weights
    is_same_tokenizer = checkpoint.state["tokenizer_digest"] == tokenizer.digest
    is_same_text = is_same_tokenizer or has_same_text_tokenizer(model, folder, checkpoint.state, tokenizer)
    label_modules = [] if is_same_tokenizer else model.label_parameters()
    labels = {name for name in (*parameters, *weights) if name.split(".")[0] in label_modules}
    if patterns:
        names = select_parameters("train.init_parameters", patterns, parameters)
    else:
        weights = {name: array for name, array in weights.items() if name not in labels}
        names = [name for name in parameters if name not in labels]
    foreign = labels | (set() if is_same_text else set(model.vocabulary_parameters()))
    fits = {n: n not in foreign and n in weights and weights[n].shape == p.shape for n, p in parameters.items()}
    fitting = fitting_patterns(fits)
    listed = f'= "{", ".join(fitting)}"' if len(fitting) <= MAX_PATTERNS else "with patterns of those that fit"
    expected = {name: parameters[name].shape for name in names}
    problems = mismatches(expected, weights if not patterns else {n: weights[n] for n in names if n in weights})
    if problems:
        if not patterns:
            problems = size_differences(model.config, model_config(checkpoint.state)) or problems
        more = f" and {len(problems) - MAX_LISTED} more" if len(problems) > MAX_LISTED else ""
        suggestion = "the [model] and tokenizer of that run, which apply if you omit CONFIG and --set"
        if any(pattern.endswith("*") for pattern in fitting):  # not only a few vectors
            suggestion += f", or train.init_parameters {listed}"
        raise UserError(
            f"train.init: expected the parameters of this model in {folder / MODEL}; got "
            f"{'; '.join(problems[:MAX_LISTED])}{more}; try {suggestion}"
        )
    differences = computation_differences(model.config, model_config(checkpoint.state))
    if differences and not patterns:
        name, ours, theirs = differences[0]
        value, suggestion = (theirs, f"omitting {name}") if theirs == UNSET else (f"= {theirs}", f"{name} = {theirs}")
        raise UserError(
            f"train.init: expected model.{name} {value}, with which {folder} was trained; "
            f"got {ours}; try {suggestion}, or train.init_parameters {listed} to copy them anyway"
        )
    if copied := [name for name in names if name in foreign]:
        kind, got = ("labels", "different ones") if copied[0] in labels else ("tokenizer", "a different one")
        suggestion = f'data.tokenizer = "{run_files(folder)[0]}", or ' if copied[0] not in labels else ""
        raise UserError(
            f"train.init: expected the {kind} of {source}, on which {copied[0]} depends; got {got}; "
            f"try {suggestion}train.init_parameters {listed}"
        )
    for name in names:
        parameters[name].assign(npx.from_host(weights[name]))
    warn_of_old_average(source, folder, checkpoint.state, on_warning)
    if differences:
        changes = ", ".join(f"model.{name} is {ours} instead of {theirs}" for name, ours, theirs in differences)
        on_warning(
            f"train.init: {changes}, with which {folder} was trained; the {len(names)} copied parameters may compute "
            "a different function"
        )
    return f"starting from {len(names)} of {len(parameters)} parameters of {folder}"


def fitting_patterns(fits: Mapping[str, bool], prefix: str = "") -> list[str]:
    """Return patterns, such as encoder.0.*, that match the parameters that fit; `fits` has all parameters by name."""
    if all(fits.values()):
        return [f"{prefix}*"]
    patterns = []
    for part, group in groupby(fits, lambda name: name.removeprefix(prefix).split(".")[0]):
        names = list(group)
        name = f"{prefix}{part}"
        if names != [name]:
            patterns += fitting_patterns({n: fits[n] for n in names}, f"{name}.")
        elif fits[name]:
            patterns.append(name)
    return patterns


def size_differences(config: TransformerConfig, source: TransformerConfig) -> list[str]:
    """Return a description of each key of [model] that differs and that may change the shapes of the weights."""
    names = [f.name for f in keys_of(type(config)) if value_type(f) is not float and f.name not in COMPUTATION_KEYS]
    values = ((name, getattr(config, name), getattr(source, name)) for name in names)
    return [f"{name} = {to_toml(theirs)} instead of {to_toml(ours)}" for name, ours, theirs in values if ours != theirs]


def has_same_text_tokenizer(model: SequenceModel, folder: Path, state: Mapping[str, Any], tokenizer: Any) -> bool:
    """Return whether `model` and the model of a checkpoint predict labels and have the same tokenizer for text."""
    if model.data_kind != "labels" or ARCHITECTURES[model_config(state).architecture].data_kind != "labels":
        return False
    source: Any = task_of(state).load_tokenizer(run_files(folder)[0])
    return bool(source.source.digest == tokenizer.source.digest)


def computation_differences(config: TransformerConfig, source: TransformerConfig) -> list[tuple[str, str, str]]:
    """Return the name and both values of each key with which models with the same weights compute differently."""

    def computation(model_config: TransformerConfig) -> dict[str, Any]:
        interleaved = model_config.positions != "sinusoidal_halves"
        rate_scheme = resolve_rate_scheme(interleaved, model_config.position_rates)
        has_rates = model_config.positions.startswith("sinusoidal")
        distance = model_config.resolved_max_relative_distance
        unused = {"max_relative_distance": not distance, "position_rates": not has_rates}
        values = {name: getattr(model_config, name) for name in COMPUTATION_KEYS}
        values |= {"max_relative_distance": distance, "position_rates": rate_scheme}
        return {name: value for name, value in values.items() if not unused.get(name)}

    def text(value: Any) -> str:
        return UNSET if value is None else to_toml(value)

    ours, theirs = computation(config), computation(source)
    # If only one model uses a key, `positions` is listed as a difference.
    differing = [name for name in ours if name in theirs and ours[name] != theirs[name]]
    return [(name, text(ours[name]), text(theirs[name])) for name in differing]
