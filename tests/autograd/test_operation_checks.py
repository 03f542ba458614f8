"""Checks of operands and vjps (autograd/operation_checks.py): bad input raises; no gradient is lost silently."""

import numpy as np
import pytest

import npx
from autograd import Tensor, checkpoint, differentiable, neural
from autograd import operations as ops
from models import Module, Parameter
from models.layers.convolution import glu
from models.layers.gelu import gelu
from models.layers.gelu_erf import gelu_erf
from models.layers.recurrent import gru, lstm
from models.layers.rms_norm import rms_norm
from models.layers.silu import silu
from models.layers.swiglu import gated_silu
from npx import AttentionSpec
from train import Adam


def leaf(*shape, dtype="float32"):
    return Tensor(np.arange(1, 1 + np.prod(shape, dtype=int)).reshape(shape).astype(dtype), requires_grad=True)


# Tensors as arguments


def test_keyword_tensors_get_gradients():
    x, w, b = leaf(4, 3), leaf(3, 2), leaf(2)
    positional = neural.linear(x, w, b)
    by_name = neural.linear(x, b=b, w=w)
    assert by_name.data.tobytes() == positional.data.tobytes()
    by_name.sum().backward()
    assert b.grad.tolist() == [4, 4]
    assert w.grad is not None
    ops.add(x, b=x).sum().backward()
    assert (x.grad[:, 0] == w.data[0].sum() + 2).all()


@pytest.mark.parametrize(
    "use",
    [
        lambda x: ops.stack([x, x]),
        lambda x: ops.concatenate((x, x), axis=1),
        lambda x: x[Tensor(np.array([0, 1])), 1],
        lambda x: ops.getitem(x, (Tensor(np.array([0, 1])), 1)),
        lambda x: ops.concatenate(x, x, axis=Tensor(np.array(0))),
    ],
)
def test_a_tensor_that_no_gradient_would_reach_raises(use):
    with pytest.raises(
        TypeError,
        match="expected each Tensor as a separate positional argument; got a Tensor in .*; try one positional arg",
    ):
        use(leaf(2, 2))


def test_a_list_of_tensors_is_not_a_tensor():
    for make in (Tensor, np.asarray):
        with pytest.raises(TypeError, match=r"without losing its gradient; try autograd.operations.stack\(a, b\)"):
            make([leaf(2), leaf(2)])


# Dtypes


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "maximum", "minimum", "matmul"])
@pytest.mark.parametrize("other", [np.arange(1, 4), Tensor([1, 2, 3]), [1.0, 2.0, 3.0]], ids=repr)
def test_operands_that_would_widen_the_result_raise(name, other):
    for operands in [(leaf(3), other), (other, leaf(3))]:
        with pytest.raises(TypeError, match=f"{name}: expected operands of the same dtype; got float32 and .* float64"):
            getattr(ops, name)(*operands)


def test_a_choice_that_would_widen_the_result_raises():
    for operands in [(leaf(3), np.arange(3)), (np.arange(3), leaf(3))]:
        with pytest.raises(TypeError, match="where: expected operands of the same dtype; got float32 and int64"):
            ops.where(np.array([True, False, True]), *operands)
    assert ops.where(np.array([True, False, True]), leaf(3), 0.0).dtype == "float32"


def test_a_conversion_that_would_lose_the_gradient_raises():
    for dtype in ("int64", bool):
        with pytest.raises(TypeError, match=r"astype: expected a floating dtype; got \w+; try x.data.astype"):
            leaf(3).astype(dtype)
    assert Tensor([1, 2]).astype("int8").dtype == "int8"


def test_operands_that_keep_the_dtype_are_accepted():
    x = leaf(3)
    for y in (x * 2, 2.5 * x, x * np.float32(2), x * np.array([True, False, True]), x * np.int8(3), x / True):
        assert y.dtype == "float32"


# Comparisons, truth values, iteration


def test_comparisons_return_arrays_of_bools():
    x = Tensor(np.array([0.0, 1.0, 2.0]), requires_grad=True)
    y = Tensor(np.array([0.0, 2.0, 1.0]))
    assert (x == 0).tolist() == [True, False, False] == (0 == x).tolist()
    assert (x != y).tolist() == [False, True, True]
    assert (x < y).tolist() == [False, True, False]
    assert (1 <= x).tolist() == [False, True, True]
    assert (x > y.data).tolist() == [False, False, True]
    ops.where(x >= 1, x * 5, x).sum().backward()
    assert x.grad.tolist() == [1, 5, 5]
    assert 1.0 in x
    assert 3.0 not in x
    assert len({x, y, x}) == 2  # hashed by identity


def test_truth_value_and_iteration_over_the_first_axis():
    assert Tensor([1.0]) and not Tensor([0.0]) and not Tensor(0.0)
    with pytest.raises(ValueError, match="ambiguous"):
        bool(leaf(2))
    x = leaf(3, 2)
    first, *_ = x
    first.sum().backward()
    assert x.grad.tolist() == [[1, 1], [0, 0], [0, 0]]
    with pytest.raises(TypeError, match="unsized"):
        list(Tensor(1.0))


def test_transpose_takes_axes_in_a_tuple():
    assert leaf(2, 3, 4).transpose((2, 0, 1)).shape == leaf(2, 3, 4).transpose(2, 0, 1).shape == (4, 2, 3)


# Results of vjps


@pytest.mark.parametrize(
    ("vjp", "result"),
    [
        (lambda g: g, "got ndarray; try `return .gradient,.`, with a comma"),
        (lambda g: None, "got NoneType"),
        (lambda g: [g, g], "got list"),
        (lambda g: (g,), "got a tuple of length 1$"),
        (lambda g: (g, 1.0), "got float"),
    ],
)
def test_a_vjp_without_a_gradient_for_a_tensor_raises(vjp, result):
    @differentiable
    def product(a, b):
        return a * b, vjp

    with pytest.raises(RuntimeError, match=f"product: expected the vjp to return .*{result}"):
        product(leaf(2), leaf(2)).sum().backward()


def test_a_vjp_may_omit_trailing_arguments_without_gradient():
    @differentiable
    def scaled(a, factor):
        return a * factor, lambda g: (g * factor,)

    x = leaf(2)
    scaled(x, np.full(2, 3, "float32")).sum().backward()
    assert x.grad.tolist() == [3, 3]


def test_embedding_rejects_added_positions_that_require_gradients():
    table, added = leaf(5, 2), leaf(3, 2)
    with pytest.raises(
        RuntimeError, match="embedding: expected the vjp to return a tuple of length 4.*got a tuple of length 1"
    ):
        neural.embedding(table, np.array([1, 2, 3]), 1.0, added).sum().backward()


# Ids and shapes


OUTSIDE = "expected ids from 0 to 4; got .*; try the tokenizer"
NO_INTEGERS = r"expected integer ids; got .*; try .astype\('int64'\)"


@pytest.mark.parametrize(
    ("ids", "message"),
    [([-1, 4], OUTSIDE), ([0, 5], OUTSIDE), ([True, False], NO_INTEGERS)],
)
def test_invalid_ids_raise(ids, message):
    table = leaf(5, 2)
    ids = np.array(ids)
    for use in (
        lambda: neural.embedding(table, ids),
        lambda: neural.cross_entropy(leaf(2, 5), ids),
        lambda: neural.linear_cross_entropy(leaf(2, 2), table, ids),
    ):
        with pytest.raises(ValueError, match=message):
            use()


def test_targets_may_be_a_list():
    loss = neural.cross_entropy(leaf(2, 5), [1, 2], npx.LabelSmoothing(pad_id=-1))
    assert loss.item() == neural.cross_entropy(leaf(2, 5), np.array([1, 2]), npx.LabelSmoothing(pad_id=-1)).item()


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (((1, 2, 1, 2), (3, 2, 1, 2), (3, 2, 1, 2)), "the same batch size for q and k"),
        (((2, 2, 1, 2), (3, 2, 1, 2), (3, 2, 1, 2)), "the same batch size for q and k"),
        (((2, 2, 1, 2), (2, 3, 1, 2), (2, 2, 1, 2)), "v to have the batch size, length and number of heads of k"),
        (((2, 2, 3, 2), (2, 3, 2, 2), (2, 3, 2, 2)), "the number of heads to be a multiple of the 2 key"),
        (((2, 2, 1, 2), (2, 3, 1, 4), (2, 3, 1, 2)), "queries and keys of the same size"),
    ],
)
def test_attention_names_the_shapes_that_do_not_fit(shapes, expected):
    with pytest.raises(ValueError, match=f"attention: expected {expected}.*; got q .* and "):
        neural.attention(*(leaf(*shape) for shape in shapes))


def test_merged_attention_names_the_columns_of_each_part():
    with pytest.raises(ValueError, match=r"expected 2 \* 4 \(q\) \+ 2 \* 4 \(k\) \+ 2 \* d_v \(v\) columns; got 15$"):
        neural.self_attention(leaf(1, 2, 15), 2, 4)
    with pytest.raises(ValueError, match=r"expected 2 \* 4 \(q\) columns; got 7$"):
        neural.cross_attention(leaf(1, 2, 7), leaf(1, 2, 16), 2, 4)


def test_cross_attention_needs_equal_numbers_of_sentences():
    with pytest.raises(ValueError, match="attention: expected the same batch size for q and k; got q"):
        neural.cross_attention(leaf(1, 2, 4), leaf(3, 2, 8), 2, 2)


def test_a_bool_mask_as_bias_raises():
    x = leaf(1, 2, 1, 2)
    with pytest.raises(ValueError, match=r"expected a floating-point bias; got bool; try npx.mask_bias"):
        neural.attention(x, x, x, AttentionSpec(constant_bias=np.array([[True, False]])))


@pytest.mark.parametrize("bias", [(1,), (3,), (2, 2)])
def test_linear_needs_a_bias_for_each_column(bias):
    with pytest.raises(ValueError, match=r"linear: expected x \(..., I\), w \(I, O\) and b \(O,\); got"):
        neural.linear(leaf(4, 3), leaf(3, 2), leaf(*bias))


def test_linear_accepts_empty_rows():
    assert neural.linear(leaf(2, 0), leaf(0, 3)).data.tolist() == [[0, 0, 0]] * 2


def test_the_gradient_of_a_quotient_of_tiny_numbers():
    b = Tensor(np.array([1e-25, 1e20], "float32"), requires_grad=True)
    (Tensor(np.array([1e-25, 1e30], "float32")) / b).sum().backward()
    np.testing.assert_allclose(b.grad, [-1e25, -1e-10], rtol=1e-6)


@pytest.mark.parametrize("mode", ["fast", "reference"])
@pytest.mark.parametrize("shape", [(3, 2, 4), (2, 1, 4), (4,)])
def test_a_residual_of_another_shape_raises(mode, shape):
    gain = np.ones(4)
    with (
        npx.kernel_mode(mode),
        pytest.raises(ValueError, match=r"expected a residual of shape \(2, 3, 4\), like x; got"),
    ):
        npx.dropout_residual_norm(np.ones((2, 3, 4)), np.ones(shape), gain, gain)


@pytest.mark.parametrize("kind", ["int64", "uint8", "bool"])
def test_layers_reject_integers(kind):
    x = Tensor(np.ones((2, 4), kind))
    weights = np.ones((1, 4))
    calls = {
        "rms_norm": lambda: rms_norm(x, np.ones(4)),
        "lstm": lambda: lstm(x, weights),
        "gru": lambda: gru(x[:, :3], weights[:, :3], np.ones(1)),
    } | {f"elementwise {f.__name__}": lambda f=f: f(x) for f in (silu, gelu, gelu_erf, glu, gated_silu)}
    for name, call in calls.items():
        message = f"^{name.split()[0]}: expected a floating-point dtype; got {kind}; try .astype"
        with pytest.raises(ValueError, match=message):
            call()


# Changed weights


class OneWeight(Module):
    def __init__(self):
        self.weight = Parameter(np.ones(3, "float32"))


@pytest.mark.parametrize("change", ["step", "assign", "load"])
def test_backward_after_a_change_of_the_weights_raises(change):
    module = OneWeight()
    adam = Adam(module)
    w = module.weight
    loss = (w * w).sum()
    if change == "step":
        adam.step(0.1)
    elif change == "assign":
        w.assign(2)
    else:
        module.load_state_dict({"weight": np.zeros(3)})
    with pytest.raises(RuntimeError, match="the weights changed after 'multiply' used them; call backward before"):
        loss.backward()
    (w * w).sum().backward()


@pytest.mark.parametrize("function", [lambda x, w: x * w, lambda x, w: w], ids=["product", "weight"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_backward_of_a_checkpoint_after_a_change_of_the_weights_raises(function, depth):
    """The change comes before the recomputation, so the nodes of the recomputed graph are newer than the change."""
    w = OneWeight().weight

    def nested(x, level):
        return checkpoint(nested, x, level - 1) if level else function(x, w)

    for x in (leaf(3), leaf(3) * 2):
        loss = nested(x, depth).sum()
        w.assign(5)
        with pytest.raises(RuntimeError, match="the weights changed after 'checkpoint' used them; call backward"):
            loss.backward()
        nested(x, depth).sum().backward()


# Gradient checkpointing


def test_a_checkpointed_module_takes_keyword_tensors():
    x, memory = leaf(3), leaf(3)

    class Layer(Module):
        def forward(self, x, memory):
            return x * memory

    layer = Layer()
    gradients = []
    for layer.gradient_checkpointing in (False, True):
        x.grad = memory.grad = None
        m = memory * 2
        (layer(x, memory=m) + layer(x, memory=m) + m).sum().backward()
        gradients.append((x.grad.tolist(), memory.grad.tolist()))
    assert gradients[0] == gradients[1]


def test_a_checkpointed_function_that_uses_an_outer_graph_raises():
    x = leaf(3)
    h = ops.tanh(leaf(3))
    with pytest.raises(RuntimeError, match="also uses a result of 'tanh'; try passing this result as an arg"):
        (checkpoint(lambda t: t * h, x).sum() + h.sum()).backward()


@pytest.mark.parametrize("argument", ["constant_bias", "score_bias"])
@pytest.mark.parametrize("shape", [(3, 3), (2, 2, 2, 3), (1, 1, 1, 1, 3)])
def test_a_bias_that_does_not_fit_the_scores_raises(argument, shape):
    q, k = leaf(1, 1, 2, 4), leaf(1, 3, 2, 4)
    bias = np.zeros(shape, "float32")
    options = {"spec": AttentionSpec(constant_bias=bias)} if argument == "constant_bias" else {"score_bias": bias}
    with pytest.raises(ValueError, match=r"attention: expected a bias that can be broadcast to \(1, 2, 1, 3\); got"):
        neural.attention(q, k, k, **options)


def test_encodings_of_another_length_raise():
    with pytest.raises(ValueError, match=r"embedding: expected encodings of shape \(2, 3\); got \(4, 3\)"):
        neural.embedding(leaf(5, 3), np.array([1, 2]), 1.0, np.zeros((4, 3), "float32"))


@pytest.mark.parametrize("name", ["concatenate", "stack"])
def test_joining_floats_with_integers_raises(name):
    with pytest.raises(TypeError, match=f"{name}: expected operands of the same dtype; got float32 and int64"):
        getattr(ops, name)(leaf(3), np.arange(3))


def test_a_keyword_array_of_another_floating_dtype_raises():
    for call in (
        lambda: neural.linear(leaf(2, 3), w=np.ones((3, 2))),
        lambda: neural.layer_norm(leaf(2, 3), gamma=np.ones(3, "float32"), beta=np.zeros(3)),
    ):
        with pytest.raises(TypeError, match="of the same floating dtype; got float32 and float64"):
            call()


def test_numbers_and_dtypes_may_be_keywords():
    assert ops.astype(leaf(3), dtype=np.float64).dtype == "float64"
    assert ops.power(leaf(3), exponent=np.float64(2)).dtype == "float32"
    assert neural.layer_norm(leaf(2, 3), leaf(3), leaf(3), eps=np.float64(1e-5)).dtype == "float32"


def test_a_mask_beside_a_score_bias_raises():
    x, bias = leaf(1, 2, 1, 2), leaf(2, 2)
    with pytest.raises(ValueError, match=r"expected a floating-point bias; got bool; try npx.mask_bias"):
        neural.attention(x, x, x, AttentionSpec(constant_bias=np.ones((2, 2), bool)), score_bias=bias)
