"""Checks of a model's configuration: the range of each field, and the consistency of fields with each other."""

from typing import Any

from models.fields import check, keys_of
from models.registry import POSITIONS
from npx.ranges import Range

VOCABULARY = Range(int, "[1, 16777216]")


def check_config(c: Any) -> None:
    """Raise ValueError, naming the field, for the TransformerConfig of a model that cannot be built."""
    if not VOCABULARY.fits(c.vocab_size):
        raise ValueError(f"vocab_size: expected {VOCABULARY.describe()}; got {c.vocab_size!r}")
    check_special_ids(c)
    check(c)
    if c.src_vocab_size is not None:
        check_source_vocabulary(c)
    check_unknown_id(c)
    check_widths(c)
    if c.positions == "t5":
        check_buckets(c)
    check_architecture(c)
    check_window(c)


def special_ids(c: Any) -> dict[str, Any]:
    """Return {field: id} for the special tokens that every model has."""
    return {name: getattr(c, name) for name in ("pad_id", "bos_id", "eos_id")}


def check_special_ids(c: Any) -> None:
    """Raise ValueError for special ids that are outside the vocabulary or the outputs, or equal to each other."""
    vocab_size, n_outputs = c.vocab_size, c.n_outputs
    special = special_ids(c)
    for name, value in special.items():
        if not (type(value) is int and 0 <= value < vocab_size):
            raise ValueError(f"{name}: expected a whole number below vocab_size = {vocab_size}; got {value!r}")
    names = ", ".join(special)
    ids = special.values()
    # Search needs different ids. With decoder_start "pad", it does not use bos_id.
    used = {name: i for name, i in special.items() if (name, c.decoder_start) != ("bos_id", "pad")}
    if len({*used.values()}) < len(used):
        raise ValueError(f"{names}: expected different ids; got {', '.join(map(str, ids))}")
    if n_outputs is not None and not (type(n_outputs) is int and max(ids) < n_outputs <= vocab_size):
        lowest = f"{max(ids) + 1} (above {names})"
        raise ValueError(f"n_outputs: expected a whole number from {lowest} to {vocab_size}; got {n_outputs!r}")
    for i in c.suppressed_ids:
        if not (type(i) is int and 0 <= i < vocab_size and i != c.eos_id):
            raise ValueError(
                f"suppressed_ids: expected ids below vocab_size = {vocab_size} other than eos_id; got {i!r}"
            )


def check_unknown_id(c: Any) -> None:
    """Raise ValueError if word dropout has no id for dropped words."""
    unk_id = c.unk_id
    special = special_ids(c)
    if c.word_dropout and not (type(unk_id) is int and 0 <= unk_id < c.vocab_size and unk_id not in special.values()):
        raise ValueError(
            f"unk_id: expected an id below vocab_size = {c.vocab_size} other than {', '.join(special)}; got {unk_id!r}"
        )


def check_widths(c: Any) -> None:
    """Raise ValueError for sizes that are not divisible as the heads, positions or architecture require."""
    if c.d_model % c.n_heads and None in (c.d_k, c.d_v):
        step = c.n_kv_heads or 1
        divisors = [n for n in range(step, 2 * c.n_heads, step) if c.d_model % n == 0]
        n_heads = f"n_heads = {min(divisors, key=lambda n: abs(n - c.n_heads))}, " if divisors else ""
        raise ValueError(
            f"d_model: expected a multiple of n_heads = {c.n_heads}; got {c.d_model}; try {n_heads}"
            f"d_model = {c.d_model // c.n_heads * c.n_heads or c.n_heads}, or setting d_k and d_v"
        )
    if c.architecture in ("rnn", "bytenet") and c.d_model % 2:
        raise ValueError(
            f"d_model: expected an even number for {c.architecture}, some of whose layers have half the width; "
            f"got {c.d_model}; try {c.d_model + 1}"
        )
    if POSITIONS[c.positions].rotary_base and c.key_size % 2:
        raise ValueError(
            f"d_k: expected an even number with {c.positions} positions; got {c.key_size}; try {c.key_size + 1}"
        )
    if c.n_kv_heads and c.n_heads % c.n_kv_heads:
        divisors = [n for n in range(1, c.n_kv_heads) if c.n_heads % n == 0]
        raise ValueError(
            f"n_kv_heads: expected a divisor of n_heads = {c.n_heads}; got {c.n_kv_heads}; try {divisors[-1]}"
        )


def check_window(c: Any) -> None:
    """Raise ValueError for a window together with options that windowed attention does not support."""
    relative = c.positions if c.positions in ("alibi", "shaw", "t5") else ""
    others = {"n_kv_heads": c.n_kv_heads, "qk_norm": c.qk_norm, f"positions = {relative}": relative}
    if c.attention_window is not None and (given := [name for name, value in others.items() if value]):
        raise ValueError(
            f"attention_window = {c.attention_window} cannot be combined with {given[0]}; try removing one of the two"
        )


def check_architecture(c: Any) -> None:
    """Raise ValueError for a key that the architecture would ignore."""
    for f in keys_of(type(c)):
        names = f.metadata["architectures"]
        value = getattr(c, f.name)
        if names and c.architecture not in names and value != f.default:
            raise ValueError(
                f"{f.name}: expected the default unless architecture = {' or '.join(names)}; got {value!r} with "
                f"{c.architecture}; try without {f.name}"
            )
    absolute = ("sinusoidal", "sinusoidal_halves", "learned")
    if c.architecture == "convs2s" and c.positions not in absolute:
        raise ValueError(
            f"positions: expected {' or '.join(absolute)} with architecture = convs2s; got {c.positions}; "
            "try sinusoidal"
        )


def check_buckets(c: Any) -> None:
    """Raise ValueError unless relative_buckets is even and max_relative_distance is greater than half of it."""
    n, distance = c.relative_buckets, c.resolved_max_relative_distance
    if n % 2:
        raise ValueError(f"relative_buckets: expected an even number; got {n}; try {n + 1}")
    if distance <= n // 2:
        raise ValueError(
            f"max_relative_distance: expected more than relative_buckets / 2 = {n // 2}; got {distance}; try {4 * n}"
        )


def check_source_vocabulary(c: Any) -> None:
    """Raise ValueError if a separate source vocabulary is too small or cannot be combined with the value of `tying`."""
    if not VOCABULARY.fits(c.src_vocab_size) or c.src_vocab_size <= max(special_ids(c).values()):
        raise ValueError(
            f"src_vocab_size: expected {VOCABULARY.describe()}, greater than all special ids; got {c.src_vocab_size!r}"
        )
    if c.tying == "all":
        raise ValueError(
            "tying: expected output or none with separate vocabularies, whose embeddings cannot be one matrix; "
            'got "all"; try "output", or a shared vocabulary'
        )
