"""JSON for the blocks of a traced pass (trace.py). The functions `show_...` return the overview and open blocks."""

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

import npx
from autograd import Tensor
from models.layers.attention import CrossAttention
from models.layers.positions import IdentityPositions, LearnedPositions
from train.viewer.attention_steps import attention_head, head_inputs
from train.viewer.explanations import ALL_TOKENS, EARLIER_TOKENS, FIXED, NEXT_TOKEN, OWN_LABELS, OWN_OUTPUT, explain
from train.viewer.inspection import AXES, BEGIN, TEXT_AXES, Head, log_softmax, mask_of, token_texts
from train.viewer.trace import OUTPUT, Block, Trace, blocks, norm, on_host, zeros_if_none

MAX_THUMBNAIL = 128  # maximum columns of a matrix in the overview; wider ones are subsampled
MAX_COLUMNS = 4096  # maximum columns of a matrix in an open block
SHOWN_TOKENS = 40  # maximum columns of the vocabulary in the output block
Labels = Mapping[str, list[str]]  # the labels of the positions of each stack


def structure(model: Any, one_label_per_text: bool = True) -> list[dict[str, Any]]:
    """Return the blocks of a model with their parameters, independently of any sentence. See `blocks`."""
    parameters = dict(model.named_parameters())
    return [
        {
            "name": b.name, "kind": b.kind, "title": b.title, "stack": b.stack, "layer": b.layer,
            "parameters": sum(parameters[name].size for name in b.parameters),
        }
        for b in blocks(model, one_label_per_text)
    ]  # fmt: skip


def show_overview(trace: Trace) -> dict[str, Any]:
    """Return thumbnails and norms of the outputs of all blocks and of the gradients of these outputs."""
    shown = {}
    for name, block in trace.blocks.items():
        y, g = trace.output(name)
        outgoing = {source: norm(value) for source, value in trace.outgoing_gradients(name).items()}
        weights = sum(trace.parameter_gradients.get(p, 0.0) ** 2 for p in block.parameters) ** 0.5
        shown[name] = {
            "shape": list(y.shape), "value": thumbnail(y), "gradient": thumbnail(g), "norm": norm(y),
            "gradient_norm": norm(g), "leaving": outgoing, "parameter_gradient_norm": weights,
        }  # fmt: skip
    return {"blocks": shown, "loss": trace.loss, "about_loss": describe_loss_targets(trace)}


def describe_loss_targets(trace: Trace) -> str:
    """Return a sentence that describes the targets of the loss."""
    if trace.model.data_kind == "labels":
        return OWN_LABELS
    return NEXT_TOKEN if trace.ids["encoder"] is None else OWN_OUTPUT


def thumbnail(values: Any) -> dict[str, Any]:
    """Return a matrix as base64-encoded signed bytes, scaled to its largest magnitude, with at most 128 columns."""
    step = npx.ceil_div(values.shape[1], MAX_THUMBNAIL)
    values = values[:, ::step]
    largest = float(np.abs(values).max(initial=0)) or 1.0
    levels = np.rint(values / largest * 127).astype(np.int8)
    return {"rows": len(values), "columns": values.shape[1], "bytes": base64.b64encode(levels.tobytes()).decode()}


def matrix(
    title: str, values: Any, gradient: Any, rows: Sequence[str], columns: Sequence[str] | str, **extra: Any
) -> dict[str, Any]:
    """Return a matrix with headers, its values and its gradient (None if it has no gradient) as base64-encoded float32.

    Args:
        columns: the labels, or the name of a dimension whose columns are labeled by their indices.
    """
    return {
        "title": title, "shape": list(values.shape), "rows": list(rows),
        "columns": columns if isinstance(columns, str) else list(columns),
        "values": encode_array(values), "gradient": None if gradient is None else encode_array(gradient),
        "norm": norm(np.nan_to_num(values, neginf=0)), "gradient_norm": None if gradient is None else norm(gradient),
        **extra,
    }  # fmt: skip


def encode_array(values: Any) -> str:
    """Return the first columns of a matrix as base64-encoded float32."""
    return base64.b64encode(np.ascontiguousarray(values[:, :MAX_COLUMNS], "<f4").tobytes()).decode()


def encode_mask(mask: Any) -> str | None:
    """Return a base64-encoded byte for each cell, 1 where a mask is false (hidden); None without a mask."""
    return None if mask is None else base64.b64encode(np.ascontiguousarray(~mask, "u1").tobytes()).decode()


def show_block(trace: Trace, name: str, head: int, tokenizer: Any) -> dict[str, Any]:
    """Return the contents of an open block: text, matrices, parameters, and incoming and outgoing gradients.

    A row of the decoder is named after the token that the decoder reads there. In the output block, rows are named
    after their targets.

    Args:
        head: index of the head of an attention block (`has_head`); ignored for other blocks.
    """
    block = trace.blocks[name]
    side = "source" if trace.model.data_kind == "labels" else "target"
    stack_labels = {
        stack: [] if ids is None else token_texts(tokenizer, ids.tolist(), "source" if stack == "encoder" else side)
        for stack, ids in trace.ids.items()
    }
    stack_labels["decoder"][0] = BEGIN
    if trace.model.data_kind == "labels":
        stack_labels["text"][0] = BEGIN
    answer = SHOW.get(block.kind, show_other)(trace, block, stack_labels, tokenizer, head)
    _, g = trace.output(name)
    shapes = [(p, trace.parameters[p]) for p in block.parameters]
    return {
        "block": name, **answer, "arriving": norm(g) if name != OUTPUT else 1.0,
        "leaving": [[to, norm(value)] for to, value in trace.outgoing_gradients(name).items()],
        "parameters": [
            [n, list(p.shape), p.size, norm(p.data), trace.parameter_gradients.get(n, 0.0)] for n, p in shapes
        ],
    }  # fmt: skip


def inputs_of(trace: Trace, block: Block, stack_labels: Labels, symbol: str = "x") -> list[dict[str, Any]]:
    """Return the matrices that a block reads, each with the gradient that the block passes back to it."""
    outgoing = trace.outgoing_gradients(block.name)
    matrices = []
    for name, x in trace.inputs(block.name).items():
        source = trace.blocks[name]
        title = f"{symbol}, from {source.title.lower()}"
        if source.stack != block.stack:
            title = "output of the encoder"
        elif source.name == f"{block.name}_residual":
            title = "norm(x)"
        names = stack_labels[source.stack][: len(x)]  # the output of a pooler has one row
        matrices.append(matrix(title, x, zeros_if_none(outgoing.get(name), x), names, "dimension"))
    return matrices


def output_of(trace: Trace, block: Block, stack_labels: Labels, title: str = "output y") -> dict[str, Any]:
    """Return the matrix of the output of a block."""
    y, g = trace.output(block.name)
    return matrix(title, y, g, stack_labels[block.stack][: len(y)], "dimension")


def show_other(trace: Trace, block: Block, stack_labels: Labels, tokenizer: Any, head: int) -> dict[str, Any]:
    """Show the inputs and the output."""
    return {"matrices": [*inputs_of(trace, block, stack_labels), output_of(trace, block, stack_labels)]}


def show_norm(trace: Trace, block: Block, stack_labels: Labels, tokenizer: Any, head: int) -> dict[str, Any]:
    """Show the inputs and the output, and explain the norm."""
    return explain("norm", trace.model.config.norm_type) | show_other(trace, block, stack_labels, tokenizer, head)


def show_embedding(trace: Trace, block: Block, stack_labels: Labels, tokenizer: Any, head: int) -> dict[str, Any]:
    """Show the scaled rows of the table, the vectors added to them, and the sum."""
    y, g = trace.output(block.name)
    model = trace.model
    config = trace.model.config
    ids = trace.ids[block.stack]
    table = trace.parameters[block.parameters[0]]
    normed = getattr(model, "embedding_norm", None)
    types = getattr(model, "token_types", None)
    embedding = model.source_embedding if block.parameters[0].startswith("source") else model.embedding
    positions = getattr(model, block.name.replace("embedding", "positions"))
    start = config.decoder_start if block.stack == "decoder" else "bos"
    is_start = ids == config.bos_id
    if start == "pad":
        ids = np.where(is_start, config.pad_id, ids)
    scaled = on_host(table.data[ids]) * np.float32(embedding.scale)
    if start == "zeros":
        scaled[is_start] = 0
    space = model.target_space if block.stack == "encoder" else None
    vector = np.broadcast_to(on_host(space.weight.data), y.shape) if space else np.zeros_like(y)
    is_scaled = embedding.scale != 1
    root, sizes = ("√D · ", f",  √D = {embedding.scale:.4g}") if is_scaled else ("", "")
    notes = [
        "The rows are the tokens that the decoder reads." if block.stack == "decoder" else "",
        f"E is the parameter {block.parameters[0].removesuffix('.weight')}.",
        "The first row is 0: the decoder starts from a zero vector." if start == "zeros" else "",
        "The first row is the embedding of padding, from which the decoder starts." if start == "pad" else "",
        "P is 0: these positions act within attention."
        if isinstance(positions, IdentityPositions) and not types
        else "",
        "P includes the vectors of the token types, which distinguish two texts." if types else "",
        "The sum passes through a norm, whose output is y." if normed else "",
    ]
    added = y - scaled - vector
    row_labels = stack_labels[block.stack]
    numbers = [str(i) for i in range(len(y))]
    is_learned = isinstance(positions, LearnedPositions)
    about_positions = f"The positions are {'learned and receive the same gradient' if is_learned else 'fixed'}."
    vector_sum = " + s" if space else ""
    return {
        **explain("embedding", root=root, sizes=sizes, space=vector_sum, positions=about_positions),
        "note": " ".join(filter(None, notes)),
        "matrices": [
            matrix(f"{root}E[token]", scaled, None if normed else g, row_labels, "dimension"),
            *([] if normed else [
                matrix("positions P", added, g if is_learned else None, numbers, "dimension", without_gradient=FIXED)
            ]),
            *([matrix("target space s", vector, g, row_labels, "dimension")] if space else []),
            output_of(trace, block, stack_labels, "norm y" if normed else "sum y"),
        ],
    }  # fmt: skip


def show_feed_forward(trace: Trace, block: Block, stack_labels: Labels, tokenizer: Any, head: int) -> dict[str, Any]:
    """Show the input, the hidden values after the activation, and the output."""
    outer = trace.find_operation(block.name, "linear")
    assert outer is not None
    hidden = trace.operations[cast(int, outer.inputs[0])]
    zeros = float((hidden.y == 0).mean())
    activation = trace.model.config.activation
    return {
        **explain("feed-forward.swiglu" if activation == "swiglu" else "feed-forward", activation=activation),
        "note": f"{zeros:.0%} of the hidden values are exactly 0." if activation == "relu" else "",
        "matrices": [
            *inputs_of(trace, block, stack_labels),
            matrix(f"hidden h, after {activation}", hidden.y, hidden.g, stack_labels[block.stack], "unit"),
            output_of(trace, block, stack_labels),
        ],
    }


def show_residual(trace: Trace, block: Block, stack_labels: Labels, tokenizer: Any, head: int) -> dict[str, Any]:
    """Show both inputs, their sum, the mean and deviation of each row, and the output."""
    residual = module_of(trace.model, block.name)
    row_labels = stack_labels[block.stack]
    inputs = trace.inputs(block.name)
    outgoing = trace.outgoing_gradients(block.name)
    sublayer = next(s for s in inputs if trace.blocks[s].kind in ("attention", "feed_forward", "other"))
    skip = next((s for s in inputs if s != sublayer), sublayer)
    title = "output y"
    x, f = inputs[skip], inputs[sublayer]
    gradient = zeros_if_none(outgoing.get(sublayer), f)  # equals the gradient of the sum
    scaled = "x" if residual.alpha == 1 else "α x"
    alpha = "" if residual.alpha == 1 else f",  α = {residual.alpha:.4g}"
    formula = "f(x)" if residual.is_post_norm else "f(norm(x))"
    shown = [
        matrix("x, the residual stream", x, zeros_if_none(outgoing.get(skip), x), row_labels, "dimension"),
        matrix(f"{formula}, the sub-layer", f, gradient, row_labels, "dimension"),
    ]
    if residual.is_post_norm:
        normalized = np.float32(residual.alpha) * x + f
        kind = "post"
        shown.append(matrix(f"{scaled} + f(x)", normalized, gradient, row_labels, "dimension"))
    else:
        normalized = x
        kind = "pre"
        title = "x + f(norm(x)), output y"
        if residual.output_norm:
            kind, title = "sandwich", "x + norm′(f(norm(x))), output y"
            normed = trace.operations[cast(int, trace.last_operation(block.name).inputs[1])]
            shown.append(matrix("norm′(f(norm(x)))", normed.y, normed.g, row_labels, "dimension"))
    statistics = np.stack([normalized.mean(axis=1), normalized.std(axis=1)], axis=1)
    before = matrix("before the norm", statistics, None, row_labels, ["mean", "deviation"])
    shown.insert(len(shown) if residual.is_post_norm else 1, before)
    return {
        **explain(f"residual.{kind}", trace.model.config.norm_type, x=scaled, alpha=alpha,
                  factor="" if residual.alpha == 1 else "α "),
        "matrices": [*shown, output_of(trace, block, stack_labels, title)],
    }  # fmt: skip


def show_attention(trace: Trace, block: Block, stack_labels: Labels, tokenizer: Any, head: int) -> dict[str, Any]:
    """Show one head from its queries, keys and values to its output, recomputed with elementary operations."""
    attention = module_of(trace.model, block.name)
    operation = trace.find_operation(block.name, "attention")
    parts = head_inputs(trace, operation, attention, head) if operation else None
    if operation is None or parts is None:
        return show_without_heads(trace, block, stack_labels)
    columns = slice(head * attention.d_v, (head + 1) * attention.d_v)
    cross = isinstance(attention, CrossAttention)
    kind = "cross" if cross else block.stack
    mask, reason = mask_of(trace.model, kind, len(parts[0]))
    g = zeros_if_none(operation.g, operation.y)[:, columns]
    steps = attention_head(*parts, attention.rotary_base, mask, g)
    expected = operation.y[:, columns]
    tolerance = 1e-3 * np.abs(expected).max(initial=0)
    if not np.allclose(steps["output"][0], expected, rtol=0, atol=tolerance, equal_nan=True):
        return show_without_heads(trace, block, stack_labels)  # the steps do not support an option of the model
    keys = stack_labels["encoder" if cross else block.stack]
    masked = steps["scaled"][0].copy()
    if mask is not None:
        masked[~mask] = -np.inf
    queries = stack_labels[block.stack]
    plus = "" if mask is None else " + mask"
    ablated_heads = [h for h in range(attention.n_heads) if Head(kind, cast(int, block.layer), h) in trace.ablated]
    ablated = "This head is ablated: its rows of W^O are 0. " if head in ablated_heads else ""
    row, column = (AXES | TEXT_AXES)[kind]
    if block.stack == "decoder":
        row = "token that the decoder reads (in Translate: token that it generates there)"
    rotated = "Queries and keys are rotated by their positions before the scores are computed. "
    rotation = "" if attention.rotary_base is None else rotated
    return {
        **explain(
            "cross-attention" if cross else "self-attention",
            whom=EARLIER_TOKENS if kind in trace.model.causal_kinds else ALL_TOKENS,
            mask=plus, root=f"{attention.d_k**0.5:.4g}", last=attention.n_heads - 1,
            bias="" if attention.output.bias is None else " + b",
        ),
        "note": f"{ablated}{rotation}Rows: {row}. Columns: {column}. {reason}",
        "heads": attention.n_heads, "head": head, "ablated_heads": ablated_heads,
        "names": [str(Head(kind, cast(int, block.layer), h)) for h in range(attention.n_heads)],
        "matrices": [
            *inputs_of(trace, block, stack_labels),
            matrix("queries q", *steps["q"], queries, "dimension"),
            matrix("keys k", *steps["k"], keys, "dimension"),
            matrix("values v", *steps["v"], keys, "dimension"),
            matrix("scores q kᵀ", *steps["scores"], queries, keys),
            matrix(f"scores / √d_k{plus}", masked, steps["scaled"][1], queries, keys, masked=encode_mask(mask)),
            matrix("weights, softmax of each row", *steps["weights"], queries, keys, unit=True,
                   masked=encode_mask(mask)),
            matrix("head output, weights · v", *steps["output"], queries, "dimension"),
            output_of(trace, block, stack_labels, "all heads, concatenated, times W^O: y"),
        ],
    }  # fmt: skip


def show_without_heads(trace: Trace, block: Block, stack_labels: Labels) -> dict[str, Any]:
    """Show the inputs and the output of attention, and say that its heads are not shown."""
    note = "The heads of this kind of attention are not shown."
    return show_other(trace, block, stack_labels, None, 0) | {"note": note}


def module_of(model: Any, name: str) -> Any:
    """Return the module that has a given dotted name, such as "encoder.0.attention"."""
    for part in name.split("."):
        model = model[int(part)] if part.isdigit() else getattr(model, part)
    return model


def has_head(model: Any, block: Block, head: int) -> bool:
    """Return whether a block can be shown with this head."""
    return block.kind != "attention" or 0 <= head < module_of(model, block.name).n_heads


def show_output(trace: Trace, block: Block, stack_labels: Labels, tokenizer: Any, head: int) -> dict[str, Any]:
    """Show logits, probabilities p and differences p - y, where y is 1 for the target.

    The columns are the targets and the most probable tokens at any position.
    """
    logits = on_host(trace.model.logits(Tensor(npx.asarray(trace.states[trace.rows]))).data)
    log_p = log_softmax(logits)  # (T, V)
    order = np.argsort(-log_p, axis=1, kind="stable")
    has_target = np.arange(len(log_p)) < len(log_p) - (trace.model.data_kind == "text")  # a text's last token has none
    targets = trace.targets[has_target]
    wanted = dict.fromkeys(targets.tolist())
    for rank in range(log_p.shape[1]):
        if len(wanted) >= min(SHOWN_TOKENS, log_p.shape[1]):
            break
        wanted |= dict.fromkeys(order[:, rank].tolist())
    ids = list(wanted)[: max(SHOWN_TOKENS, len(set(targets.tolist())))]
    names = token_texts(tokenizer, ids)
    gradient = np.exp(log_p)
    gradient[np.flatnonzero(has_target), targets] -= 1
    gradient[~has_target] = 0
    gradient /= max(1, int((targets != trace.model.config.pad_id).sum()))
    predicted = [*token_texts(tokenizer, targets.tolist()), *["(next token)"] * int((~has_target).sum())]
    whom = "the first token, <s>," if len(trace.states) == 1 else "the first token of each word"
    kind = "output"
    tied = trace.model.projection is None
    bias = "" if trace.model.output_bias is None else " + b"
    note = f"{'E is the embedding matrix: input and output are tied. ' if tied else ''}" + (
        f"The loss on this sentence is {trace.loss:.4f} nats per token. "
        f"A row is named after its target. Of {log_p.shape[1]:,} tokens, {len(ids)} are shown."
    )
    note += "" if has_target.all() else " The last row predicts the token after the text."
    input_labels: Labels = {**stack_labels, block.stack: predicted}
    if trace.model.data_kind == "labels":
        kind, input_labels = "output.labels", stack_labels
        note = (
            f"The loss on this text is {trace.loss:.4f} nats per label. Of {log_p.shape[1]:,} entries, {len(ids)} are "
            "shown. These include special tokens, which are never labels."
        )
        if len(trace.rows) > 1:
            row_labels = [stack_labels[block.stack][i] for i in trace.rows]
            predicted = [f"{row}/{name}" for row, name in zip(row_labels, predicted, strict=True)]
    return {
        **explain(kind, loss=describe_loss_targets(trace), whom=whom, bias=bias),
        "note": note,
        "targets": predicted,
        "bars": [
            [[label, float(np.exp(log_p[t, i])), bool(has_target[t] and i == trace.targets[t])] for i, label in
             zip(order[t, :10], token_texts(tokenizer, order[t, :10].tolist()), strict=True)]
            for t in range(len(log_p))
        ],
        "matrices": [
            *inputs_of(trace, block, input_labels, "input h"),
            matrix("logits", logits[:, ids], gradient[:, ids], predicted, names),
            matrix("probabilities p", np.exp(log_p[:, ids]), None, predicted, names, unit=True),
        ],
    }  # fmt: skip


SHOW: dict[str, Callable[[Trace, Block, Any, Any, int], dict[str, Any]]] = {
    "attention": show_attention, "feed_forward": show_feed_forward, "residual": show_residual,
    "embedding": show_embedding, "norm": show_norm, "output": show_output,
}  # fmt: skip
