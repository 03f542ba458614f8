"""Export to ONNX: one graph for the encoder and one for the decoder, with the names of Hugging Face Optimum."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models import TransformerConfig
from train.errors import UserError, pip_install
from train.formats import marian
from train.formats.export import WRITERS
from train.formats.marian_folder import MarianModel, check_tokenizer, marian_model, write_settings, write_tokenizer
from train.run.config import RunConfig

ENCODER, DECODER = "encoder_model.onnx", "decoder_model.onnx"
OPSET, IR_VERSION = 20, 9  # required by the operator Gelu
MASKED_SCORE = -1e9  # constant added to the scores of masked positions


@WRITERS.register("onnx")
def write_onnx(model: Any, tokenizer: Any, config: RunConfig, folder: Path, dtype: str) -> None:
    """Write the two graphs, the settings and the tokenizer. The decoder takes complete prefixes (without a cache)."""
    try:
        import onnx
    except ImportError:
        raise UserError(f"export: the package onnx is not installed; try {pip_install('formats')}") from None
    if dtype != "float32":
        raise UserError(f"--dtype: expected float32 with --to onnx; got {dtype}; try --to ctranslate2")
    check_tokenizer(tokenizer, "onnx")
    converted = marian_model(model, tokenizer, "onnx", ("post", "pre"))
    for name, build in ((ENCODER, encoder_graph), (DECODER, decoder_graph)):
        onnx.save(build(onnx, converted, model.config), str(folder / name))
    write_settings(model.config, converted, config, folder, dtype)
    write_tokenizer(tokenizer, converted, folder)


class GraphBuilder:
    """A graph under construction. The methods add nodes and return the name of the output."""

    def __init__(self, onnx: Any, converted: MarianModel, config: TransformerConfig, side: str) -> None:
        self.onnx, self.tensors, self.config, self.side = onnx, converted.tensors, config, side
        self.n_positions = converted.n_positions
        self.nodes: list[Any] = []
        self.initializers: dict[str, Any] = {}

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output."""
        name = f"{operator}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, [name], **attributes))
        return name

    def constant(self, name: str, array: Any) -> str:
        """Return the name of an initializer, which is added at its first use."""
        self.initializers.setdefault(name, np.ascontiguousarray(array))
        return name

    def number(self, value: float) -> str:
        """Return the name of a float32 constant."""
        return self.constant(f"number_{value}", np.float32(value))

    def shape(self, *sizes: int) -> str:
        """Return the name of an int64 constant that contains a shape or a list of axes."""
        return self.constant(f"shape_{'_'.join(map(str, sizes))}", np.array(sizes, np.int64))

    def linear(self, x: str, name: str) -> str:
        """Add a projection of the model: x W^T + b."""
        weight = self.constant(f"{name}.weight", self.tensors[f"{name}.weight"].T)
        return self.add(
            "Add", self.add("MatMul", x, weight), self.constant(f"{name}.bias", self.tensors[f"{name}.bias"])
        )

    def norm(self, x: str, name: str) -> str:
        """Add a layer norm of the model."""
        parameters = [self.constant(f"{name}.{p}", self.tensors[f"{name}.{p}"]) for p in ("weight", "bias")]
        return self.add("LayerNormalization", x, *parameters, axis=-1, epsilon=self.config.norm_eps)

    def heads(self, x: str) -> str:
        """Add nodes that split x (B, T, D) into heads (B, H, T, d)."""
        c = self.config
        parts = self.add("Reshape", x, self.shape(0, 0, c.n_heads, c.d_model // c.n_heads))
        return self.add("Transpose", parts, perm=[0, 2, 1, 3])

    def attention(self, x: str, memory: str, name: str, mask: str) -> str:
        """Add multi-head attention from x to memory; `mask` is added to the scores."""
        q, k, v = (self.heads(self.linear(y, f"{name}.{p}_proj")) for y, p in ((x, "q"), (memory, "k"), (memory, "v")))
        scores = self.add("MatMul", q, self.add("Transpose", k, perm=[0, 1, 3, 2]))
        scaled = self.add("Mul", scores, self.number(self.config.key_size**-0.5))
        weights = self.add("Softmax", self.add("Add", scaled, mask), axis=-1)
        merged = self.add("Transpose", self.add("MatMul", weights, v), perm=[0, 2, 1, 3])
        return self.linear(self.add("Reshape", merged, self.shape(0, 0, self.config.d_model)), f"{name}.out_proj")

    def activation(self, x: str) -> str:
        """Add the activation of the feed-forward networks, applied to x."""
        if self.config.activation == "silu":
            return self.add("Mul", x, self.add("Sigmoid", x))
        if self.config.activation == "relu":
            return self.add("Relu", x)
        return self.add("Gelu", x, approximate="tanh" if self.config.activation == "gelu" else "none")

    def residual(self, x: str, f: Any, norm: str) -> str:
        """Add a residual connection around the sub-layer f, with the norm after the sum or before f."""
        if self.config.norm_placement == "pre":
            return self.add("Add", x, f(self.norm(x, norm)))
        return self.norm(self.add("Add", x, f(x)), norm)

    def embed(self, ids: str) -> str:
        """Add nodes that look up ids (B, T) in the embedding and add the positions."""
        table = self.tensors.get(marian.SOURCE if self.side == "encoder" else marian.TARGET)
        rows = self.constant("embedding", self.tensors[marian.SHARED] if table is None else table)
        x = self.add("Gather", rows, ids)
        if self.config.scale_embedding:
            x = self.add("Mul", x, self.number(self.config.d_model**0.5))
        name = f"model.{self.side}.embed_positions.weight"
        positions = self.tensors.get(name)
        if positions is None:
            positions = marian.sinusoid_table(self.n_positions, self.config.d_model)
        length = self.add("Shape", ids, start=1, end=2)
        return self.add(
            "Add", x, self.add("Slice", self.constant(name, positions), self.shape(0), length, self.shape(0))
        )

    def padding_mask(self, mask: str) -> str:
        """Add nodes that turn a mask (B, S) of ones and zeros into a bias (B, 1, 1, S) of the attention scores."""
        zeros = self.add("Sub", self.number(1.0), self.add("Cast", mask, to=self.onnx.TensorProto.FLOAT))
        return self.add("Mul", self.add("Unsqueeze", zeros, self.shape(1, 2)), self.number(MASKED_SCORE))

    def layers(self, x: str, mask: str, memory: str = "", memory_mask: str = "") -> str:
        """Add the layers of the encoder or decoder, and the norm after the last layer if the model has one."""
        for i in range(self.config.n_layers):
            name = f"model.{self.side}.layers.{i}"
            part = f"{name}.self_attn"
            x = self.residual(x, lambda y, part=part: self.attention(y, y, part, mask), f"{part}_layer_norm")
            if memory:
                part = f"{name}.encoder_attn"
                x = self.residual(
                    x, lambda y, part=part: self.attention(y, memory, part, memory_mask), f"{part}_layer_norm"
                )
            x = self.residual(
                x,
                lambda y, name=name: self.linear(self.activation(self.linear(y, f"{name}.fc1")), f"{name}.fc2"),
                f"{name}.final_layer_norm",
            )
        return self.norm(x, f"model.{self.side}.layer_norm") if self.config.norm_placement == "pre" else x

    def model(self, inputs: dict[str, Sequence[Any]], output: str, result: str, shape: Sequence[Any]) -> Any:
        """Return the finished model.

        Args:
            inputs: maps a name to a shape; inputs with three axes are floats, those with two are ids and masks.
        """
        helper, proto = self.onnx.helper, self.onnx.TensorProto
        self.nodes.append(helper.make_node("Identity", [result], [output]))
        infos = [
            helper.make_tensor_value_info(name, proto.FLOAT if len(axes) == 3 else proto.INT64, axes)
            for name, axes in inputs.items()
        ]
        arrays = [self.onnx.numpy_helper.from_array(array, name) for name, array in self.initializers.items()]
        out = helper.make_tensor_value_info(output, proto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, self.side, infos, [out], arrays)
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="npx-transformer")
        self.onnx.checker.check_model(model)
        return model


def encoder_graph(onnx: Any, converted: MarianModel, config: TransformerConfig) -> Any:
    """Return the graph from source ids and their mask to the memory (B, S, D)."""
    g = GraphBuilder(onnx, converted, config, "encoder")
    x = g.layers(g.embed("input_ids"), g.padding_mask("attention_mask"))
    ids = ["batch", "source"]
    return g.model({"input_ids": ids, "attention_mask": ids}, "last_hidden_state", x, [*ids, config.d_model])


def decoder_graph(onnx: Any, converted: MarianModel, config: TransformerConfig) -> Any:
    """Return the graph from decoder ids, memory and its mask to the logits (B, T, V)."""
    g = GraphBuilder(onnx, converted, config, "decoder")
    memory, mask = "encoder_hidden_states", "encoder_attention_mask"
    length = g.add("Shape", "input_ids", start=1, end=2)
    square = g.add("ConstantOfShape", g.add("Concat", length, length, axis=0),
                   value=onnx.numpy_helper.from_array(np.array([MASKED_SCORE], np.float32)))  # fmt: skip
    causal = g.add("Trilu", square, g.constant("one", np.array(1, np.int64)), upper=1)
    x = g.layers(g.embed("input_ids"), causal, memory, g.padding_mask(mask))
    rows = g.tensors.get(marian.OUTPUT, g.tensors.get(marian.TARGET, g.tensors.get(marian.SHARED)))
    assert rows is not None
    if marian.OUTPUT in g.tensors:
        transposed = g.constant("projection", rows.T)
    else:
        transposed = g.add("Transpose", "embedding", perm=[1, 0])
    logits = g.add("Add", g.add("MatMul", x, transposed), g.constant("bias", g.tensors[marian.BIAS][0]))
    inputs: dict[str, Sequence[Any]]
    inputs = {"input_ids": ["batch", "target"], memory: ["batch", "source", config.d_model], mask: ["batch", "source"]}
    return g.model(inputs, "logits", logits, ["batch", "target", len(rows)])
