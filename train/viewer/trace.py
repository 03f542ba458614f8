"""The data that the page shows of a model: one forward and backward pass on one sentence, block by block.

A *block* is a part of the model that the page draws as a box, like those in Figure 1 of the paper: an embedding, a
sub-layer, a residual connection with its norm, a final norm or the output projection. `blocks` lists the blocks of a
model by walking its modules. `Trace` runs the model on a sentence and its target, records every operation through an
observer of the engine, and assigns the operations to blocks by the names of their modules. blocks.py turns a traced
block into the matrices that the page shows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

import npx
from autograd import Tensor, observing
from autograd.engine import BackwardEvent, Node
from autograd.observe import LayerNames, Observer
from models.layers.attention import Attention
from models.layers.feed_forward import FeedForward
from models.layers.norm import Residual
from models.module import Module
from train.viewer.inspection import Head, ablate_heads

OUTPUT = "output"  # the block of the projection to the vocabulary and the loss
# Maps an attribute of a model to the name of the stack.
STACKS = {"encoder": "encoder", "decoder": "decoder", "layers": "text"}


@dataclass(frozen=True)
class Block:
    """One block of the model as the page draws it, like the boxes in Figure 1 of the paper.

    `name` is the dotted name of the module that computes the block, if there is exactly one.
    """

    name: str
    kind: str  # "embedding", "attention", "residual", "feed_forward", "norm", "output" or "other"
    title: str
    stack: str  # "encoder", "decoder" or "text"
    layer: int | None  # counted from 0; None outside the layers
    parameters: tuple[str, ...]  # dotted names


def blocks(model: Any, one_label_per_text: bool = True) -> list[Block]:
    """Return the blocks of a model in the order in which they run.

    Args:
        one_label_per_text: for an encoder, whether a text has one label; the pooler, if any, runs only in this case.
    """
    names = [name for name, _ in model.named_parameters()]
    result: list[Block] = []

    def add(
        name: str, kind: str, title: str, stack: str, layer: int | None = None, prefixes: Sequence[str] = ()
    ) -> None:
        starts = tuple(f"{prefix}." for prefix in prefixes or (name,))
        parameters = tuple(n for n in names if n.startswith(starts) or n in prefixes)
        result.append(Block(name, kind, title, stack, layer, parameters))

    for attribute, stack in STACKS.items():
        if not hasattr(model, attribute):
            continue
        side = {"encoder": "source", "decoder": "target", "text": "text"}[stack]
        is_separate = stack == "encoder" and getattr(model, "source_embedding", None)
        table = "source_embedding" if is_separate else "embedding"
        extra = {"encoder": ("target_space",), "text": ("token_types", "embedding_norm")}.get(stack, ())
        add(
            f"{side}_embedding", "embedding", "Embedding + positions", stack, None, (table, f"{side}_positions", *extra)
        )
        for i, layer in enumerate(getattr(model, attribute)):
            for name, module in layer.named_children():
                add(f"{attribute}.{i}.{name}", *describe(name, module, stack in model.causal_kinds), stack, i)
        final = "norm" if stack == "text" else f"{attribute}_norm"
        if getattr(model, final, None):
            add(final, "norm", "Final norm", stack)
    if one_label_per_text and getattr(model, "pooler", None):
        add("pooler", "other", "Pooler", result[-1].stack)
    table = "embedding" if model.projection is None else "projection"  # tied or not
    add(OUTPUT, "output", "Linear + softmax", result[-1].stack, None, (table, "output_bias"))
    return result


def describe(name: str, module: Module, causal: bool) -> tuple[str, str]:
    """Return the kind and the title of the block that shows this module of a layer."""
    if isinstance(module, Attention):
        if name == "cross_attention":
            return "attention", "Cross-attention"
        return "attention", "Masked self-attention" if causal else "Self-attention"
    if isinstance(module, Residual):
        return "residual", "Add & norm" if module.is_post_norm else "Norm & add"
    if isinstance(module, FeedForward):
        return "feed_forward", "Feed-forward"
    return "other", name.replace("_", " ").capitalize()


@dataclass
class Operation:
    """One operation of the pass. Arrays are copies on the host without the batch axis."""

    name: str
    layer: str  # dotted name of the module
    inputs: list[int | None]  # for each argument, the number of the operation that computed it, or None
    y: Any  # its output
    g: Any = None  # the gradient of its output; None if backward did not reach it
    # Maps the position of each argument that was computed by an operation to the gradient of that argument.
    gradients: dict[int, Any] | None = None


class OperationRecorder(Observer):
    """Records operations by node number."""

    def __init__(self) -> None:
        self.names = LayerNames()
        self.operations: dict[int, Operation] = {}
        self.sums: dict[int, Any] = {}  # sums of the gradients that have arrived at an operation

    def on_forward(self, name: str, args: tuple[Any, ...], result: Tensor) -> None:
        if result.node is not None:
            inputs = [a.node.number if isinstance(a, Tensor) and a.node else None for a in args]
            self.operations[result.node.number] = Operation(name, self.names.current(), inputs, on_host(result.data))

    def on_backward(self, event: BackwardEvent) -> None:
        operation = self.operations[event.node.number]
        operation.g = on_host(event.g)
        operation.gradients = {}
        for i, (parent, gradient) in enumerate(zip(event.parents, event.gradients, strict=False)):
            if isinstance(parent, Node) and gradient is not None:
                array = on_host(gradient)
                before = self.sums.get(parent.number, 0)
                if event.accumulate_into and gradient is event.accumulate_into[i]:  # `gradient` is the new sum
                    array = array - before
                self.sums[parent.number] = before + array
                operation.gradients[i] = array


def on_host(array: Any) -> Any:
    """Return a copy in float32 on the host, without the batch axis of length 1."""
    array = np.array(npx.to_host(array), np.float32)
    return array[0] if array.ndim > 2 else array


class Trace:
    """The operations, values and gradients of one pass, by block.

    Args:
        model: in evaluation mode.
        ids: rows of token ids: [source, target], where the target begins with BOS; [text]; or [text, labels], where
            labels is one label, or a label or padding for each token. The model predicts the last row. For [text],
            the model also reads the last token, which has no target.
        ablated: the heads to ablate (`ablate_heads`).

    The loss is the cross entropy per predicted token, without label smoothing.
    """

    def __init__(self, model: Any, ids: Sequence[Sequence[int]], ablated: Iterable[Head] = ()) -> None:
        self.model = model
        one_label_per_text = len(ids[-1]) == 1
        self.blocks = {block.name: block for block in blocks(model, one_label_per_text)}
        self.ablated = frozenset(ablated)
        self.parameters = dict(model.named_parameters())
        *sources, predicted = (np.array([row]) for row in ids)
        predicts_labels = model.data_kind == "labels"
        padding = np.full((1, 1), model.config.pad_id)
        is_text = model.data_kind == "text"
        inputs, targets = (sources[0], predicted) if predicts_labels else (predicted[:, :-1], predicted[:, 1:])
        if is_text:
            inputs, targets = predicted, np.concatenate([targets, padding], axis=1)
        has_source = bool(sources) and not predicts_labels
        self.ids = {"encoder": sources[0][0] if has_source else None, "decoder": inputs[0], "text": inputs[0]}
        self.rows = np.arange(targets.shape[1])
        if predicts_labels:  # only some tokens have a label
            self.rows = np.flatnonzero(targets[0] != model.config.pad_id)
        self.targets = targets[0, self.rows]
        with ablate_heads(model, self.ablated), observing(OperationRecorder()) as recorder:
            if predicts_labels:
                hidden = model.label_states(model.encode(inputs)[0], one_label_per_text)
            elif has_source:
                hidden = model.decode(npx.from_host(inputs), *model.encode(sources[0]))
            else:
                hidden = model.hidden_states(npx.from_host(inputs))
            loss = model.token_loss(hidden, npx.from_host(targets), 0.0, "all", max(1, len(self.rows) - is_text))
            loss.backward()
        self.loss = loss.item()
        self.operations = recorder.operations
        self.parameter_gradients = {n: norm(p.grad) for n, p in self.parameters.items() if p.grad is not None}
        for parameter in self.parameters.values():
            parameter.grad = None
        self.states = on_host(hidden.data)  # the projected states (T, D); `rows` are the indices of the predictions
        self.members = self.assign_operations()
        self.block_of = {number: name for name, numbers in self.members.items() for number in numbers}

    def assign_operations(self) -> dict[str, list[int]]:
        """Return the operations of each block, by the names of their modules."""
        members: dict[str, list[int]] = {name: [] for name in self.blocks}
        pending: list[int] = []  # embeddings and positions run before the first layer of their stack
        started_stacks: set[str] = set()  # stacks whose first layer has begun
        current_layer: dict[str, int] = {}
        for number, operation in self.operations.items():
            owner = self.block_of_layer(operation.layer)
            stack, layer = (self.blocks[owner].stack, self.blocks[owner].layer) if owner is not None else ("", None)
            # A position bias that layers share belongs to the layer that adds it, not to the first layer.
            if owner is None or (layer is not None and layer < current_layer.get(stack, 0)):
                pending.append(number)
                continue
            current_layer[stack] = layer or 0
            first = next(block.name for block in self.blocks.values() if block.stack == stack)
            members[owner if stack in started_stacks else first] += pending
            pending = []
            members[owner].append(number)
            if owner != first:
                started_stacks.add(stack)
        members[OUTPUT] += pending  # the loss
        return members

    def block_of_layer(self, layer: str) -> str | None:
        """Return the block that contains a module; if several do, the one with the longest name."""
        names = [name for name in self.blocks if layer == name or layer.startswith(f"{name}.")]
        return max(names, key=len, default=None)

    def last_operation(self, block: str) -> Operation:
        """Return the operation that computes the output of a block."""
        return self.operations[self.members[block][-1]]

    def output(self, block: str) -> tuple[Any, Any]:
        """Return the output (T, D) of a block, or the input of the output block, and the gradient of this array."""
        if block == OUTPUT:
            return next(iter(self.inputs(block).values())), next(iter(self.outgoing_gradients(block).values()))
        operation = self.last_operation(block)
        return operation.y, zeros_if_none(operation.g, operation.y)

    def outgoing_gradients(self, block: str) -> dict[str, Any]:
        """Return the gradients that a block passes on, by the name of the block that receives them."""
        gradients: dict[str, Any] = {}
        for number in self.members[block]:
            operation = self.operations[number]
            for i, g in (operation.gradients or {}).items():
                receiver = self.block_of[cast(int, operation.inputs[i])]
                if receiver != block:
                    gradients[receiver] = gradients.get(receiver, 0) + g
        return gradients

    def inputs(self, block: str) -> dict[str, Any]:
        """Return the values that a block reads, by the name of the block that computed them."""
        values: dict[str, Any] = {}
        for number in self.members[block]:
            for source in self.operations[number].inputs:
                if source is not None and self.block_of[source] != block:
                    values[self.block_of[source]] = self.operations[source].y
        return values

    def find_operation(self, block: str, name: str) -> Operation | None:
        """Return the last operation of a block whose name contains `name`."""
        operations = (self.operations[number] for number in reversed(self.members[block]))
        return next((operation for operation in operations if name in operation.name), None)


def zeros_if_none(g: Any, y: Any) -> Any:
    """Return the gradient g of y, or zeros if backward did not reach it."""
    return np.zeros_like(y) if g is None else g


def norm(array: Any) -> float:
    """Return the Euclidean norm of an array without BLAS, whose threads would cost more time than they save."""
    return float(np.square(np.asarray(npx.to_host(array)), dtype=np.float64).sum()) ** 0.5
