"""The memory that training needs between updates: for weights, gradients and the state of the optimizer."""

import os

import npx
from models import TransformerConfig
from npx.precision import Precision
from train.errors import UserError
from train.learn.warm_start import select_parameters
from train.run.keys import TrainSection


def count_trained(model_config: TransformerConfig, freeze: str) -> int:
    """Return the number of trained parameters: those whose names match no pattern in `freeze`."""
    sizes = {name: p.size for name, p in model_config.build_abstract().named_parameters()}
    return sum(sizes.values()) - sum(sizes[name] for name in select_parameters("train.freeze", freeze, sizes))


def training_memory(n: int, n_trained: int, precision: Precision, has_average: bool) -> dict[str, int]:
    """Return the bytes that each kind of array takes, for a model with `n` parameters, `n_trained` of them trained."""
    size = precision.weight_dtype.itemsize
    kinds = {"parameters": n * size, "gradients": n_trained * size, "Adam": 2 * n_trained * size}
    if precision.is_mixed:
        kinds[f"{precision.name} copy"] = 2 * n
    if has_average:
        kinds["moving average"] = n_trained * size
    return kinds


def check_memory(model_config: TransformerConfig, settings: TrainSection, precision: Precision) -> None:
    """Raise UserError if weights, gradients and moments of a model exceed the memory of this machine."""
    n = model_config.n_parameters()
    memory = training_memory(n, count_trained(model_config, settings.freeze), precision, bool(settings.ema_decay))
    gib = sum(memory.values()) / 2**30
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (AttributeError, ValueError, OSError):  # unknown on this system
        return
    if npx.device() == "cpu" and gib > total:
        raise UserError(
            f"model: expected weights, gradients and moments that fit in this machine's {total:,.0f} GiB; got "
            f"{n:,} parameters, which take {gib:,.0f} GiB; try a smaller model.d_model, d_ff or n_layers"
        )
