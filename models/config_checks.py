"""Checks of a model's configuration: the range of each field, and the consistency of fields with each other.

In all functions, `config` is a TransformerConfig. It has no type, because models/config.py imports this module.
"""

from typing import Any

from models.fields import check_ranges, keys_of
from models.registry import POSITIONS
from npx.ranges import Range

VOCABULARY = Range(int, "[1, 16777216]")


def check_config(config: Any) -> None:
    """Raise ValueError, naming the field, for a model that cannot be built."""
    if not VOCABULARY.fits(config.vocab_size):
        raise ValueError(f"vocab_size: expected {VOCABULARY.describe()}; got {config.vocab_size!r}")
    check_special_ids(config)
    check_ranges(config)
    if config.src_vocab_size is not None:
        check_source_vocabulary(config)
    check_unknown_id(config)
    check_widths(config)
    if config.positions == "t5":
        check_buckets(config)
    check_architecture(config)
    check_window(config)


def special_ids(config: Any) -> dict[str, Any]:
    """Return {field: id} for the special tokens that every model has."""
    return {name: getattr(config, name) for name in ("pad_id", "bos_id", "eos_id")}


def check_special_ids(config: Any) -> None:
    """Raise ValueError for special ids that are outside the vocabulary or the outputs, or equal to each other."""
    vocab_size, n_outputs = config.vocab_size, config.n_outputs
    special = special_ids(config)
    for name, value in special.items():
        if not (type(value) is int and 0 <= value < vocab_size):
            raise ValueError(f"{name}: expected a whole number below vocab_size = {vocab_size}; got {value!r}")
    names = ", ".join(special)
    ids = special.values()
    # The decoder of an encoder-decoder model with decoder_start "pad" reads pad_id in place of bos_id.
    needs_bos = config.decoder_start != "pad" or config.architecture in ("decoder", "encoder")
    if config.eos_id in (config.pad_id, config.bos_id) or (needs_bos and config.bos_id == config.pad_id):
        raise ValueError(f"{names}: expected different ids; got {', '.join(map(str, ids))}")
    if n_outputs is not None and not (type(n_outputs) is int and max(ids) < n_outputs <= vocab_size):
        lowest = f"{max(ids) + 1} (above {names})"
        raise ValueError(f"n_outputs: expected a whole number from {lowest} to {vocab_size}; got {n_outputs!r}")
    for i in config.suppressed_ids:
        if not (type(i) is int and 0 <= i < config.resolved_n_outputs and i != config.eos_id):
            raise ValueError(
                f"suppressed_ids: expected output ids, from 0 to {config.resolved_n_outputs - 1}, other than eos_id; "
                f"got {i!r}"
            )


def check_unknown_id(config: Any) -> None:
    """Raise ValueError if word dropout has no id for dropped words."""
    unk_id, vocab_size = config.unk_id, config.vocab_size
    special = special_ids(config)
    is_valid = type(unk_id) is int and 0 <= unk_id < vocab_size and unk_id not in special.values()
    if config.word_dropout and not is_valid:
        raise ValueError(
            f"unk_id: expected an id below vocab_size = {vocab_size} other than {', '.join(special)}; got {unk_id!r}"
        )


def check_widths(config: Any) -> None:
    """Raise ValueError for sizes that are not divisible as the heads, positions or architecture require."""
    d_model, key_size, n_heads, n_kv_heads = config.d_model, config.key_size, config.n_heads, config.n_kv_heads
    if d_model % n_heads and None in (config.d_k, config.d_v):
        step = n_kv_heads or 1
        divisors = [n for n in range(step, 2 * n_heads, step) if d_model % n == 0]
        suggestion = f"n_heads = {min(divisors, key=lambda n: abs(n - n_heads))}, " if divisors else ""
        raise ValueError(
            f"d_model: expected a multiple of n_heads = {n_heads}; got {d_model}; try {suggestion}"
            f"d_model = {d_model // n_heads * n_heads or n_heads}, or setting d_k and d_v"
        )
    if config.architecture in ("rnn", "bytenet") and d_model % 2:
        raise ValueError(
            f"d_model: expected an even number for {config.architecture}, some of whose layers have half the width; "
            f"got {d_model}; try {d_model + 1}"
        )
    if POSITIONS[config.positions].rotary_base and key_size % 2:
        raise ValueError(
            f"d_k: expected an even number with {config.positions} positions; got {key_size}; try {key_size + 1}"
        )
    if n_kv_heads and n_heads % n_kv_heads:
        divisors = [n for n in range(1, n_kv_heads) if n_heads % n == 0]
        raise ValueError(f"n_kv_heads: expected a divisor of n_heads = {n_heads}; got {n_kv_heads}; try {divisors[-1]}")


def check_window(config: Any) -> None:
    """Raise ValueError for a window together with options that windowed attention does not support."""
    relative = config.positions if config.positions in ("alibi", "shaw", "t5") else ""
    others = {"n_kv_heads": config.n_kv_heads, "qk_norm": config.qk_norm, f"positions = {relative}": relative}
    if config.attention_window is not None and (given := [name for name, value in others.items() if value]):
        raise ValueError(
            f"attention_window = {config.attention_window} cannot be combined with {given[0]}; "
            "try removing one of the two"
        )


def check_architecture(config: Any) -> None:
    """Raise ValueError for a key that the architecture would ignore."""
    for f in keys_of(type(config)):
        names = f.metadata["architectures"]
        value = getattr(config, f.name)
        if names and config.architecture not in names and value != f.default:
            raise ValueError(
                f"{f.name}: expected the default unless architecture = {' or '.join(names)}; got {value!r} with "
                f"{config.architecture}; try without {f.name}"
            )
    absolute = ("sinusoidal", "sinusoidal_halves", "learned")
    if config.architecture == "convs2s" and config.positions not in absolute:
        raise ValueError(
            f"positions: expected {' or '.join(absolute)} with architecture = convs2s; got {config.positions}; "
            "try sinusoidal"
        )


def check_buckets(config: Any) -> None:
    """Raise ValueError unless relative_buckets is even and max_relative_distance is greater than half of it."""
    n, distance = config.relative_buckets, config.resolved_max_relative_distance
    if n % 2:
        raise ValueError(f"relative_buckets: expected an even number; got {n}; try {n + 1}")
    if distance <= n // 2:
        raise ValueError(
            f"max_relative_distance: expected more than relative_buckets / 2 = {n // 2}; got {distance}; try {4 * n}"
        )


def check_source_vocabulary(config: Any) -> None:
    """Raise ValueError if a separate source vocabulary is too small or cannot be combined with the value of `tying`."""
    size = config.src_vocab_size
    if not VOCABULARY.fits(size) or size <= max(special_ids(config).values()):
        raise ValueError(
            f"src_vocab_size: expected {VOCABULARY.describe()}, greater than all special ids; got {size!r}"
        )
    if config.tying == "all":
        raise ValueError(
            "tying: expected output or none with separate vocabularies, whose embeddings cannot be one matrix; "
            'got "all"; try "output", or a shared vocabulary'
        )
