"""What operations have to be given and vjps have to give: the checks, and what they say where it is not so."""

from collections.abc import Collection
from typing import Any, NoReturn

import npx
from npx import Array, AttentionSpec


def refuse_operands(name: str, dtypes: Collection[Any], hidden: list[Any]) -> NoReturn:
    """TypeError: Tensors are hidden where no gradient reaches them, or different floating dtypes meet."""
    if hidden:
        raise TypeError(
            f"{name}: expected Tensors as arguments of their own; got one in a list, a tuple or an option; "
            "try giving them one by one, or x.data for an index"
        )
    raise TypeError(
        f"{name}: expected Tensors and arrays of one floating dtype; "
        f"got {' and '.join(sorted(d.name for d in dtypes))}; try .astype"
    )


def check_result(name: str, result: Any, *operands: Any) -> None:
    """TypeError where a result is wider than an operand that has a gradient: float32 and integers make float64."""
    for x in operands:
        if hasattr(x, "dtype") and x.dtype.kind not in "iub" and x.dtype != result.dtype:
            other = next(getattr(y, "dtype", type(y).__name__) for y in operands if y is not x)
            made = f"{x.dtype} and {other}, which make {result.dtype}"
            raise TypeError(f"{name}: expected operands of one dtype; got {made}; try .astype")


def check_answer(name: str, parents: tuple[Any, ...], gradients: Any) -> None:
    """RuntimeError unless a vjp gave a tuple that has a place for each parent that wants a gradient."""
    if not isinstance(gradients, tuple) or any(parent is not None for parent in parents[len(gradients) :]):
        found = f"{len(gradients)} in a tuple" if isinstance(gradients, tuple) else type(gradients).__name__
        raise RuntimeError(
            f"{name}: expected its vjp to give a tuple of {len(parents)}, a gradient or None for each argument; "
            f"got {found}"
        )


def check_gradient(name: str, like: Any, gradient: Any) -> None:
    """RuntimeError unless a gradient has the shape and the dtype of what it is the gradient of."""
    if not hasattr(gradient, "dtype") or gradient.shape != like.shape or gradient.dtype != like.dtype:
        found = f"{gradient.shape} {gradient.dtype}" if hasattr(gradient, "dtype") else type(gradient).__name__
        raise RuntimeError(f"{name}: expected its vjp to give {like.shape} {like.dtype}; got {found}")


def refuse_graph(name: str, changed: bool) -> NoReturn:
    """RuntimeError: weights that a graph was computed with have been `changed`, or it was gone through before."""
    if changed:
        raise RuntimeError(
            f"backward: expected the weights that {name!r} was computed with; got some that were changed since; "
            "try backward before Adam's step"
        )
    raise RuntimeError(
        f"backward: expected a fresh graph; got one whose {name!r} was consumed by an earlier backward; "
        "try computing the result again, or adding up losses before one backward"
    )


# What the fused operations are given


def check_ids(name: str, ids: Array, classes: int) -> None:
    """ValueError unless ids are integers from 0 to below `classes`; on a GPU, which would wait, unless integers."""
    known = isinstance(ids, npx.host.ndarray) and ids.size
    if ids.dtype.kind not in "iu" or (known and not 0 <= ids.min() <= ids.max() < classes):
        found = f"{ids.dtype} from {ids.min()} to {ids.max()}" if known else ids.dtype
        raise ValueError(
            f"{name}: expected integers from 0 to {classes - 1} as ids; got {found}; "
            "try the tokenizer that belongs to the model"
        )


def check_targets(name: str, rows: Array, targets: Array, classes: int) -> None:
    """ValueError unless there is a target, one of the classes, for each row of the last axis."""
    check_ids(name, targets, classes)
    if targets.shape != rows.shape[:-1]:
        raise ValueError(
            f"{name}: expected targets of shape {rows.shape[:-1]}, one a row; got {targets.shape}; "
            "try tgt[:, 1:] for what was computed from tgt[:, :-1]"
        )


def check_attention(spec: AttentionSpec, q: Array, k: Array, v: Array) -> None:
    """ValueError unless there are keys and values for each sentence and each head of the queries."""
    packed = spec.q_packing is not None or spec.kv_packing is not None
    if q.shape[-2:] != k.shape[-2:] or k.shape[:-1] != v.shape[:-1] or not (packed or len(q) == len(k)):
        expected = "q (B, T, H, d_k), k (B, S, H, d_k) and v (B, S, H, d_v)"
        raise ValueError(f"attention: expected {expected}; got {q.shape}, {k.shape} and {v.shape}")
    if spec.bias is not None and spec.bias.dtype == bool:
        raise ValueError("attention: expected a bias of numbers; got bools; try npx.mask_bias(mask)")
