"""The traced pass behind the page's Model view: in each block, its numbers equal the model's own."""

import base64
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

import npx
from autograd import Tensor
from models import TransformerConfig
from train.viewer.blocks import module_of, show_block, show_overview, structure
from train.viewer.inspection import Head, ablate_heads
from train.viewer.trace import OUTPUT, Trace, blocks, norm, on_host

PAIR = [[5, 6, 7, 2], [1, 8, 9, 5, 2]]
MODELS = {
    "post-norm": {"norm_placement": "post"},
    "pre-norm, rotary": {"norm_placement": "pre", "positions": "rotary"},
    "learned positions, own projection": {"positions": "learned", "tying": "none", "max_positions": 32},
    "gelu, tensor2tensor layout": {"activation": "gelu", "positions": "sinusoidal_halves", "target_space": True},
    "language model": {"architecture": "decoder", "norm_placement": "pre", "positions": "rotary", "activation": "gelu"},
    "language model, post-norm": {"architecture": "decoder", "norm_placement": "post"},
}


class Names:
    """A tokenizer that names every id by its number."""

    src_vocab_size, eos_id = None, 2

    def encode(self, text):
        return [3]

    def decode_batch(self, sequences):
        return [" ".join(map(str, ids)) for ids in sequences]


@pytest.fixture(params=MODELS, scope="module")
def traced(request):
    sizes = {"vocab_size": 12, "n_layers": 2, "n_heads": 2, "d_model": 8, "d_ff": 16, "d_k": 4, "dropout": 0.1}
    model = TransformerConfig(**{**sizes, **MODELS[request.param]}).build(seed=1).eval()
    ids = PAIR[1:] if model.data_kind == "text" else PAIR
    return model, ids, Trace(model, ids)


def read(model, ids):
    """Return the tokens (1, T) that each stack reads: a text to its end, a target without its last token."""
    *sources, last = (np.array([row]) for row in ids)
    return [*sources, last if model.data_kind == "text" else last[:, :-1]]


def values(matrix, name="values"):
    return np.frombuffer(base64.b64decode(matrix[name]), "<f4").reshape(matrix["shape"])


def named(block, start):
    return next(matrix for matrix in block["matrices"] if matrix["title"].startswith(start))


def loss_of(model, ids):
    *source, predicted = (np.array([row]) for row in ids)
    return model.loss(*source, predicted, label_smoothing=0.0)


def test_the_loss_and_the_gradients_are_those_of_training(traced):
    model, ids, trace = traced
    loss = loss_of(model, ids)
    loss.backward()
    assert trace.loss == pytest.approx(loss.item(), rel=1e-5)
    expected = {name: norm(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    for p in model.parameters():
        p.grad = None
    assert trace.parameter_gradients == pytest.approx(expected, rel=1e-3, abs=1e-7)


def test_every_parameter_belongs_to_a_block_and_every_operation_too(traced):
    model, _, trace = traced
    names = {name for name, _ in model.named_parameters()}
    assert {name for block in blocks(model) for name in block.parameters} == names
    assert all(trace.members[name] for name in trace.blocks)
    assert {*trace.block_of} == {*trace.operations}


def test_the_gradients_that_leave_blocks_arrive(traced):
    """The gradient of a block's output is the sum of the gradients from the blocks that read the output.

    With pre-norm a sub-layer reads the norm of its own residual block instead, which is not that block's output.
    """
    _, _, trace = traced
    for name in trace.blocks:
        if name != OUTPUT:
            readers = [reader for reader in trace.blocks if f"{reader}_residual" != name]
            passed_back = [trace.outgoing_gradients(reader).get(name) for reader in readers]
            total = sum(g for g in passed_back if g is not None)
            np.testing.assert_allclose(total, trace.output(name)[1], atol=1e-6)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_bias_that_layers_share_is_part_of_each_of_them(norm):
    config = TransformerConfig(12, n_layers=3, n_heads=2, d_model=8, d_ff=16, positions="t5", norm_placement=norm)
    trace = Trace(config.build(seed=1).eval(), PAIR)
    for name in trace.blocks:
        arrays = (trace.output(name)[0], *trace.inputs(name).values())
        assert all(array.shape[1] == config.d_model for array in arrays), name
    test_the_gradients_that_leave_blocks_arrive((trace.model, PAIR, trace))


def test_a_head_is_the_models_own(traced):
    model, ids, trace = traced
    stacks = {"encoder": "encoder", "decoder": "decoder", "cross": ""}
    kinds = {"text": "layers"} if model.data_kind == "text" else stacks
    for kind in kinds:
        inputs = read(model, ids)
        maps = model.attention_maps(*inputs, *([] if kind == "text" else [kind]))
        for layer in range(2):
            name = f"decoder.{layer}.cross_attention" if kind == "cross" else f"{kinds[kind]}.{layer}.attention"
            for head in range(2):
                block = show_block(trace, name, head, Names())
                weights = values(named(block, "weights"))
                np.testing.assert_allclose(weights, maps[layer][0, head], atol=1e-6)
                scores, scaled = values(named(block, "scores q")), values(named(block, "scores /"))
                visible = np.isfinite(scaled)
                np.testing.assert_allclose(scaled[visible], scores[visible] / 2, rtol=1e-5)
                assert (visible == (np.tri(*scores.shape) > 0 if kind in ("text", "decoder") else True)).all()


def test_the_gradients_of_all_heads_make_up_that_of_the_block(traced):
    """The heads' gradients of q, k and v, passed through W^Q, W^K and W^V, give the gradient that leaves the block."""
    model, _, trace = traced
    name = "layers.1.attention" if model.data_kind == "text" else "encoder.1.attention"
    parts = {"queries": [], "keys": [], "values": []}
    for head in range(2):
        block = show_block(trace, name, head, Names())
        for part, gradients in parts.items():
            gradients.append(values(named(block, part), "gradient"))
    merged = np.concatenate([g for gradients in parts.values() for g in gradients], axis=1)
    layer = (model.layers if model.data_kind == "text" else model.encoder)[1]
    expected = merged @ npx.to_host(layer.attention.query_key_value.weight.data).T
    (left,) = trace.outgoing_gradients(name).values()
    np.testing.assert_allclose(expected, left, atol=1e-6)


@pytest.mark.parametrize("change", [{"d_v": 1}, {"rotary_base": 3.0}], ids=["inputs", "option"])
def test_a_head_that_cannot_be_recomputed_is_not_shown(traced, monkeypatch, change):
    model, _, trace = traced
    stack = "layers" if model.data_kind == "text" else "decoder"
    for name, value in change.items():
        monkeypatch.setattr(getattr(model, stack)[0].attention, name, value)
    block = show_block(trace, f"{stack}.0.attention", 0, Names())
    assert "heads" not in block and "not shown" in block["note"] and len(block["matrices"]) == 2


def test_residual_blocks_add_and_normalize(traced):
    _, _, trace = traced
    for name, block in trace.blocks.items():
        if block.kind != "residual":
            continue
        shown = show_block(trace, name, 0, Names())
        x, f, total = (values(named(shown, start)) for start in ("x, the", "f(", "x + f"))
        np.testing.assert_allclose(x + f, total, atol=1e-6)


OPTIONS = [
    {"architecture": architecture, **options}
    for architecture in ("encoder_decoder", "decoder")
    for options in (
        {}, {"norm_placement": "pre"}, {"norm_placement": "sandwich", "attention_window": 2},
        {"norm_placement": "deepnorm", "n_kv_heads": 2},
        {"attention_window": 3, "positions": "rotary"}, {"n_kv_heads": 1, "positions": "alibi"}, {"qk_norm": True},
        {"decoder_start": "zeros", "target_space": True},
        {"norm_placement": "pre", "attention_window": 1, "n_heads": 2},
        {"decoder_start": "pad", "positions": "learned", "norm_type": "rms_norm", "scale_embedding": False},
        {"decoder_start": "zeros", "positions": "learned", "target_space": True, "n_kv_heads": 2},
    )
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: " ".join(f"{v}" for v in o.values()))
def test_each_output_shown_is_that_of_the_engine(options):
    """A block's recomputed values are shown only if they lead to the recorded output."""
    sizes = {"vocab_size": 12, "n_layers": 1, "n_heads": 4, "d_model": 8, "d_ff": 16, "max_positions": 32}
    model = TransformerConfig(**{**sizes, **options}).build(seed=1).eval()
    random = np.random.default_rng(2)
    for p in model.parameters():
        p.data += 0.3 * random.standard_normal(p.shape).astype("float32")  # no norm and no bias is trivial
    is_text = model.data_kind == "text"
    trace = Trace(model, [[1, 8, 9, 5, 6, 7, 2]] if is_text else [[5, 6, 7, 9, 2], [1, 8, 9, 5, 6, 2]])
    is_window = "attention_window" in options
    for name, block in trace.blocks.items():
        for head in range(model.config.n_heads if block.kind == "attention" else 1):
            shown = show_block(trace, name, head, Names())
            if block.kind != "output":
                y = next(m for m in shown["matrices"] if m["title"].split()[-1] == "y")
                close(values(y), trace.output(name)[0])
            if block.kind == "attention":
                is_separate = "qk_norm" in options or (options.get("positions") == "alibi" and "cross" not in name)
                assert ("heads" in shown) != is_separate
            if "heads" in shown:
                d = model.config.d_model // model.config.n_heads
                operation = trace.find_operation(name, "attention")
                close(values(named(shown, "head output")), operation.y[:, head * d : (head + 1) * d])
                close(values(named(shown, "weights")) @ values(named(shown, "values v")), values(named(shown, "head")))
                assert ("window" in shown["note"]) == (is_window and "cross" not in name)
        if block.kind == "residual":
            residual = module_of(model, name)
            x, f = (values(named(shown, start)) for start in ("x, the", "f("))
            if residual.is_post_norm:
                total = residual.alpha * x + f
                close(values(named(shown, "x + f" if residual.alpha == 1 else "α x + f")), total)
                close(on_host(residual.norm(Tensor(npx.asarray(total))).data), trace.output(name)[0])
            else:
                f = on_host(residual.output_norm(Tensor(npx.asarray(f))).data) if residual.output_norm else f
                close(x + f, trace.output(name)[0])
                if residual.output_norm:
                    close(values(named(shown, "norm′")), f)
        if block.kind == "embedding":
            positions = getattr(model, name.replace("embedding", "positions"))
            zeros = Tensor(npx.zeros((1, *trace.output(name)[0].shape)))
            close(values(named(shown, "positions P")), on_host(positions(zeros).data))


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_the_output_block_has_the_models_probabilities(traced):
    model, ids, trace = traced
    inputs = read(model, ids)
    logits = npx.to_host(model(*inputs).data)[0]
    block = show_block(trace, OUTPUT, 0, Names())
    order = [int(name.strip("·").replace("</s>", "2")) for name in named(block, "logits")["columns"]]
    np.testing.assert_allclose(values(named(block, "logits")), logits[:, order], atol=1e-5)
    p = values(named(block, "probabilities"))
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-5)
    gradient = values(named(block, "logits"), "gradient")
    np.testing.assert_allclose(gradient.sum(axis=1), 0, atol=1e-6)


def test_embedding_and_feed_forward_blocks_have_the_shapes_of_the_model(traced):
    model, ids, trace = traced
    side, stack = ("text", "layers") if model.data_kind == "text" else ("target", "decoder")
    block = show_block(trace, f"{side}_embedding", 0, Names())
    scaled, positions, total = (values(matrix) for matrix in block["matrices"])  # the target has no target space
    np.testing.assert_allclose(scaled + positions, total, atol=1e-5)
    if model.config.positions == "rotary":
        np.testing.assert_allclose(positions, 0, atol=1e-6)
    hidden = named(show_block(trace, f"{stack}.0.feed_forward", 0, Names()), "hidden")
    assert hidden["shape"] == [read(model, ids)[-1].shape[1], 16]


def test_answers_are_strict_json_with_every_block(traced):
    model, _, trace = traced
    overview = show_overview(trace)
    assert [*overview["blocks"]] == [block["name"] for block in structure(model)]
    json.dumps(overview, allow_nan=False)
    for name in trace.blocks:
        json.dumps(show_block(trace, name, 0, Names()), allow_nan=False)


def test_a_trace_leaves_no_gradients_and_sees_ablated_heads(traced):
    model, ids, trace = traced
    assert all(p.grad is None for p in model.parameters())
    kind = "text" if model.data_kind == "text" else "encoder"
    head = Head(kind, 0, 1)
    with ablate_heads(model, [head]):
        expected = Trace(model, ids).loss
    ablated = Trace(model, ids, [head])
    assert ablated.loss == expected != trace.loss and Trace(model, ids).loss == trace.loss
    for name, block in ablated.blocks.items():
        if block.kind == "attention":
            is_off = name == f"{'layers' if kind == 'text' else kind}.0.attention"
            shown = show_block(ablated, name, 1, Names())
            assert shown["ablated_heads"] == [1] * is_off and ("ablated" in shown["note"]) == is_off


def test_vendored_files_are_those_of_their_packages():
    """Each file has the recorded hash, and each package its version, licence and the registry's hash of its archive."""
    folder = Path("train/viewer/page/vendor")
    packages = json.loads((folder / "versions.json").read_text("utf-8"))
    recorded = {name: file["sha256"] for package in packages.values() for name, file in package["files"].items()}
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    digests.pop("versions.json")
    assert digests == recorded
    for name, package in packages.items():
        assert package["integrity"].startswith("sha512-") and package["version"] in package["tarball"]
        assert f"v{package['version']}" in (folder / f"{name}.js").read_text("utf-8")[:400]
