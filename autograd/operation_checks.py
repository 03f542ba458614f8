"""Checks of the arguments of operations and the results of vjps, with their messages."""

from collections.abc import Collection, Sequence
from typing import Any, NoReturn

import npx
from npx import Array, AttentionSpec


class MixedDtypesError(TypeError):
    """Tensors and arrays of different floating dtypes were passed to one operation."""


class MissingGradientError(RuntimeError):
    """A vjp returned a tuple that is too short to contain a gradient of each argument that needs one."""


def checked_values(data: Any) -> Any:
    """Return `data` if its elements are numbers or booleans; otherwise (objects, text, dates) raise TypeError."""
    if data.dtype.kind not in "biufc" and data.dtype.name != "bfloat16":
        raise TypeError(f"Tensor: expected numbers or booleans; got the dtype {data.dtype}; try .astype('float32')")
    return data


def reject_operands(name: str, dtypes: Collection[Any], nested: list[Any]) -> NoReturn:
    """Raise MixedDtypesError, or TypeError for `nested` Tensors, which would get no gradient."""
    if nested:
        raise TypeError(
            f"{name}: expected each Tensor as a separate positional argument; got a Tensor in a list, a tuple or a "
            "keyword argument; try one positional argument per Tensor, or x.data for an index"
        )
    raise MixedDtypesError(
        f"{name}: expected Tensors and arrays of the same floating dtype; "
        f"got {' and '.join(sorted(d.name for d in dtypes))}; try .astype to convert them to one dtype"
    )


def check_result(name: str, result: Any, *operands: Any) -> None:
    """Raise TypeError unless all floating operands have the dtype of the result; float32 + int64 gives float64."""
    for x in operands:
        if hasattr(x, "dtype") and x.dtype.kind not in "iub" and x.dtype != result.dtype:
            other = next(getattr(y, "dtype", type(y).__name__) for y in operands if y is not x)
            pair = f"{x.dtype} and {other}, whose result would be {result.dtype}"
            raise TypeError(
                f"{name}: expected operands of the same dtype; got {pair}; "
                f"try .astype('{x.dtype}') on the other operand"
            )


def check_vjp_result(name: str, parents: tuple[Any, ...], gradients: Any) -> None:
    """Raise RuntimeError unless a vjp returned a tuple with an entry for each parent that needs a gradient."""
    is_tuple = isinstance(gradients, tuple)
    if not is_tuple or any(parent is not None for parent in parents[len(gradients) :]):
        result = f"a tuple of length {len(gradients)}" if is_tuple else type(gradients).__name__
        advice = "" if is_tuple else "; try `return (gradient,)`, with a comma, for one argument"
        error = MissingGradientError if is_tuple else RuntimeError
        raise error(
            f"{name}: expected the vjp to return a tuple of length {len(parents)} "
            f"(a gradient or None for each argument); got {result}{advice}"
        )


def check_gradient_shape(name: str, like: Any, gradient: Any) -> None:
    """Raise RuntimeError unless the gradient of `like` has the shape and the dtype of `like`."""
    if not hasattr(gradient, "dtype") or gradient.shape != like.shape or gradient.dtype != like.dtype:
        got = type(gradient).__name__
        if hasattr(gradient, "dtype"):
            got = f"shape {gradient.shape} and dtype {gradient.dtype}"
        expected = f"the vjp to return a gradient of shape {like.shape} and dtype {like.dtype}"
        raise RuntimeError(f"{name}: expected {expected}; got {got}")


def reject_constant_result() -> NoReturn:
    """Raise RuntimeError because `backward` was called on a Tensor that no gradient reaches."""
    raise RuntimeError(
        "backward: expected the result of operations on a Tensor with requires_grad; got a Tensor with "
        "requires_grad=False; try creating its inputs with requires_grad=True, and computing it outside no_grad and "
        "without detach"
    )


def reject_copy(name: str) -> NoReturn:
    """Raise TypeError because a Tensor that the operation `name` computed was copied or pickled."""
    raise TypeError(
        f"Tensor: expected a leaf to copy or pickle; got a result of {name!r}, whose graph cannot be copied; "
        "try x.detach()"
    )


def reject_missing_gradient(shape: tuple[int, ...]) -> NoReturn:
    """Raise ValueError because `backward` was called without a gradient on a Tensor of several elements."""
    raise ValueError(
        f"backward: expected a Tensor of one element; got shape {shape}; "
        "try .sum().backward(), or backward(g) with the gradient g of this shape"
    )


def reject_changed_weights(name: str) -> NoReturn:
    """Raise RuntimeError because weights changed after the operation `name` used them."""
    raise RuntimeError(
        f"backward: the weights changed after {name!r} used them; "
        "call backward before the optimizer's step, or compute the result again"
    )


def reject_consumed_graph(name: str) -> NoReturn:
    """Raise RuntimeError because an earlier backward pass consumed the operation `name`."""
    raise RuntimeError(
        f"backward: an earlier backward has consumed the graph of {name!r}; "
        "compute the result again, or sum the losses and call backward once"
    )


# Arguments of the fused operations


def check_ids(name: str, ids: Array, n_classes: int | None = None, ndim: int | None = None) -> None:
    """Raise ValueError unless `ids` are integers from 0 to n_classes - 1 and, if `ndim` is given, have `ndim` axes.

    The values of ids on a GPU are not checked, because reading them would wait for the device.
    """
    is_integer = ids.dtype.kind in "iu"
    if not is_integer or ndim not in (None, ids.ndim):
        shape = "" if ndim is None else f"a {ndim}-D array of "
        actual = ids.dtype if ndim is None else f"{ids.ndim}-D {ids.dtype}"
        advice = "shape (B, T), such as ids[None, :] for a single sentence" if is_integer else ".astype('int64')"
        raise ValueError(f"{name}: expected {shape}integer ids; got {actual}; try {advice}")
    if n_classes is not None and isinstance(ids, npx.host.ndarray) and ids.size:
        if not 0 <= ids.min() <= ids.max() < n_classes:
            raise ValueError(
                f"{name}: expected ids from 0 to {n_classes - 1}; got {ids.min()} to {ids.max()}; "
                "try the tokenizer that belongs to the model"
            )


def host_ids(name: str, ids: Any, n_classes: int | None = None) -> Array:
    """Return `ids` (B, T) on the host. Raises ValueError unless they are a matrix of ids (`check_ids`)."""
    try:
        ids = npx.to_host(ids)
    except ValueError:  # NumPy's message about rows of different lengths does not mention padding
        raise ValueError(
            f"{name}: expected rows of equal length; got rows of different lengths; "
            "try appending the padding id (0 by default) to the shorter rows"
        ) from None
    check_ids(name, ids, n_classes, ndim=2)
    return ids


def check_targets(name: str, x: Array, targets: Array, n_classes: int) -> None:
    """Raise ValueError unless `targets` (...) has one class for each row of x (..., D)."""
    check_ids(name, targets, n_classes)
    if targets.shape != x.shape[:-1]:
        raise ValueError(
            f"{name}: expected targets of shape {x.shape[:-1]}, one for each row; got {targets.shape}; "
            "try tgt[:, 1:] for logits computed from tgt[:, :-1]"
        )


def check_attention(spec: AttentionSpec, q: Array, k: Array, v: Array) -> None:
    """Raise ValueError unless q (B, T, H, d_k), k (B, S, H_kv, d_k) and v (B, S, H_kv, d_v) fit together."""
    packed = spec.q_packing is not None or spec.kv_packing is not None
    n_heads = q.shape[-2]
    n_kv_heads = k.shape[-2]
    expected = ""
    if q.shape[-1] != k.shape[-1]:
        expected = "queries and keys of the same size"
    elif n_heads != n_kv_heads and (not n_kv_heads or n_heads % n_kv_heads):
        expected = f"the number of heads to be a multiple of the {n_kv_heads} key and value heads"
    elif k.shape[:-1] != v.shape[:-1]:
        expected = "v to have the batch size, length and number of heads of k"
    elif not (packed or len(q) == len(k)):
        expected = "the same batch size for q and k"
    if expected:
        raise ValueError(f"attention: expected {expected}; got q {q.shape}, k {k.shape} and v {v.shape}")
    if (bias := spec.constant_bias) is not None:
        if bias.dtype == bool:
            raise ValueError("attention: expected a floating-point bias; got bool; try npx.mask_bias(mask)")
        batch, n_queries, n_keys = spec.sizes(q, k)
        shape = batch, n_heads, n_queries, n_keys
        if bias.ndim > 4 or any(n not in (1, m) for n, m in zip(bias.shape[::-1], shape[::-1], strict=False)):
            raise ValueError(f"attention: expected a bias that can be broadcast to {shape}; got {bias.shape}")


def check_merged(merged: Sequence[Array], shapes: Sequence[Sequence[tuple[int, int]]]) -> None:
    """Raise ValueError unless each array has the columns of its parts: q, k and v of one array, or q, and k and v.

    Args:
        shapes: for each array, the number of heads and the head size of each part.
    """
    for x, parts, names in zip(merged, shapes, ("qkv",) if len(merged) == 1 else ("q", "kv"), strict=True):
        columns = [n_heads * size for n_heads, size in parts]
        if x.shape[-1] != sum(columns) or min(columns) < 0:
            sizes = [f"{n} * {'d_v' if name == 'v' else d} ({name})" for name, (n, d) in zip(names, parts, strict=True)]
            raise ValueError(f"attention: expected {' + '.join(sizes)} columns; got {x.shape[-1]}")
