"""Functions of NumPy, PyTorch, JAX and CuPy as operations of the checker, and what their backward passes receive."""

import subprocess
import sys
import types

import numpy as np
import pytest

from autograd import Tensor
from autograd.testing import (
    CheckError,
    GradientError,
    check_gradient,
    check_layer,
    check_operation,
    from_cupy,
    from_jax,
    from_pair,
    from_torch,
    gradcheck,
)
from autograd.testing.adapters.guess import guess_inputs

QUICK = {"vary_inputs": False}
X = np.random.default_rng(0).normal(size=(4, 6))


def affine_forward(x, w, b):
    return x.reshape(len(x), -1) @ w + b, (x, w)


def affine_backward(dout, cache):
    x, w = cache
    return (dout @ w.T).reshape(x.shape), x.reshape(len(x), -1).T @ dout, dout.sum(axis=0)


def affine_inputs():
    rng = np.random.default_rng(1)
    return rng.normal(size=(3, 4)), rng.normal(size=(4, 2)), rng.normal(size=2)


def square_forward(x):
    return x * x, x


def square_backward(dout, x):
    return 2 * x * dout


# Pairs


def test_a_course_pair_is_checked_in_every_way():
    operation = from_pair(affine_forward, affine_backward)
    report = check_operation(operation, *affine_inputs())
    assert report.variants > 30 and not report.inconclusive and not report.notes
    assert gradcheck(operation, *affine_inputs()).compared == 22


@pytest.mark.parametrize(
    ("backward", "text"),
    [
        (lambda g, cache: affine_backward(g, cache)[:2], "expected <lambda> to return 3 gradients, of x, w, b; got 2"),
        (lambda g, cache: [*affine_backward(g, cache)[:2], g], r"shape \(2,\) for input 2 of affine_forward; got"),
        (lambda g, cache: None, "expected <lambda> to return gradients; got None"),
        (lambda g, cache: [1j * a for a in affine_backward(g, cache)], "complex128"),
        (lambda g, cache: {"dx": 1}, "return dw; got the keys"),
    ],
)
def test_unfit_gradients_are_reported(backward, text):
    with pytest.raises((GradientError, CheckError), match=text):
        check_operation(from_pair(affine_forward, backward), *affine_inputs(), **QUICK)


class Square:
    """Saves values in attributes, as the layers in many courses do."""

    def forward(self, x):
        self.x = x
        return x * x

    def backward(self, dout):
        return 2 * self.x * dout


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        (square_forward, square_backward),
        (lambda x: x * x, lambda dout, x: 2 * x * dout),
        (lambda x: (x * x, x, 2.0), lambda dout, x, factor: factor * x * dout),
        (lambda x: (x * x, x, 2.0), lambda dout, cache: cache[1] * cache[0] * dout),
        (lambda x: (x * x, x), lambda dout, x: {"dx": 2 * x * dout}),
        (lambda x: ((x * x, x), x), lambda dout, x: 2 * x * dout[0] + dout[1]),
        ((layer := Square()).forward, layer.backward),
        (lambda x: (np.square(x, dtype="float64"), x), lambda dout, x: np.asarray(2 * x * dout, dtype="float64")),
    ],
    ids=["cache", "inputs", "saved", "one cache", "dict", "two outputs", "methods", "wider"],
)
def test_every_style_of_pair_is_accepted(forward, backward):
    check_operation(from_pair(forward, backward), X, **QUICK)


def test_a_loss_of_integers_and_a_dict_that_the_function_writes_to():
    def forward(x, labels, state):
        state["calls"] = state.get("calls", 0) + 1
        shifted = x - x.max(axis=1, keepdims=True)
        p = np.exp(shifted) / np.exp(shifted).sum(axis=1, keepdims=True)
        return -np.log(p[np.arange(len(x)), labels]).mean() * state["calls"], (p, labels)

    def backward(dout, cache):
        p, labels = cache
        dx = p.copy()
        dx[np.arange(len(p)), labels] -= 1
        return dout * dx / len(p)

    state = {}
    check_operation(from_pair(forward, backward), X, np.array([0, 5, 2, 2]), state, **QUICK)
    assert state == {}


def test_tensors_in_containers_and_options():
    def forward(parameters, x, scale):
        return x @ parameters["w"] * scale, (x, parameters["w"], scale)

    def backward(dout, cache):
        x, w, scale = cache
        return x.T @ (dout * scale), (dout * scale) @ w.T, (dout * (x @ w)).sum(axis=0)

    x, w, scale = affine_inputs()
    operation = from_pair(forward, backward)
    check_operation(lambda w, x, scale: operation({"w": w}, x, scale=scale), w, x, scale, **QUICK)


def test_outputs_without_a_gradient_are_noted():
    operation = from_pair(lambda x: ((x * x, x.argmax(axis=-1)), x), lambda dout, x: 2 * x * dout[0])
    assert check_operation(operation, X, **QUICK).notes == ["not checked: output 1 (int64), which has no gradient"]
    with pytest.raises(TypeError, match="expected a floating-point output; got int64"):
        check_operation(from_pair(lambda x: (x.argmax(), x), square_backward), X)
    with pytest.raises(TypeError, match="expected real outputs; got complex128"):
        check_operation(from_pair(lambda x: (x * 1j, x), square_backward), X)
    with pytest.raises(TypeError, match="expected real arrays; got complex128"):
        check_operation(from_pair(square_forward, square_backward), X, X * 1j)


def test_the_report_reproduces_a_pair():
    with pytest.raises(GradientError) as caught:
        check_operation(from_pair(square_forward, lambda dout, x: x * dout), X)
    assert "from autograd.testing import check_operation, from_pair" in str(caught.value)
    line = str(caught.value).splitlines()[-1].removeprefix("reproduce: ")
    assert "check_operation(from_pair(square_forward, backward), " in line
    with pytest.raises(GradientError):
        exec(line, {"square_forward": square_forward, "backward": lambda dout, x: x * dout})


def test_without_a_framework_the_message_is_one_line(monkeypatch):
    for name, adapter in (("torch", from_torch), ("jax", from_jax), ("cupy", from_cupy)):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(
            ImportError, match=f"from_{name}: the package {name} cannot be imported .*; try pip install"
        ):
            adapter(*([len, len] if name == "cupy" else [len]))


def test_importing_the_checker_imports_no_framework():
    script = (
        "import sys, pytest_autograd; assert not {'numpy', 'autograd'} & {*sys.modules}; import autograd.testing; "
        "assert not {'torch', 'jax', 'cupy', 'rich', 'hypothesis'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_inputs_are_guessed():
    shapes = [x.shape for x in guess_inputs(from_pair(affine_forward, affine_backward))]
    assert shapes[0][-1] == shapes[1][0] and shapes[1][-1:] == shapes[2]
    assert check_gradient(square_forward, square_backward).compared
    with pytest.raises(TypeError, match="expected a function with a gradient; got len"):
        check_gradient(len)


def test_cupy_functions_receive_every_memory_layout(monkeypatch):
    """NumPy replaces CuPy here."""
    names = ("asarray", "ascontiguousarray", "broadcast_to", "repeat")
    fake = types.SimpleNamespace(asnumpy=np.array, **{name: getattr(np, name) for name in names})
    monkeypatch.setitem(sys.modules, "cupy", fake)
    seen = set()

    def backward(dout, x):
        seen.add(dout.strides)
        return 2 * x * dout

    check_operation(from_cupy(square_forward, backward), X, **QUICK)
    assert seen >= {(48, 8), (8, 32), (96, 16), (0, 0)}
    with pytest.raises(GradientError, match=r"check_operation\(from_cupy\(square_forward, backward\)"):
        check_operation(from_cupy(square_forward, lambda dout, x: x * dout), X, **QUICK)


# PyTorch


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="needs torch (extra check-dev)")


def function_of(torch, backward, forward=lambda x: x * x):
    """Return a `torch.autograd.Function` of one input, which it saves for backward."""

    class MyFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

    def method(ctx, g):
        return backward(g, *ctx.saved_tensors)

    MyFunction.backward = staticmethod(method)
    return MyFunction


def test_a_gradient_without_storage_is_zero(torch):
    """PyTorch returns a ZeroTensor, which has no values to copy."""
    assert gradcheck(from_torch(torch.sgn), np.array([0.5, -2.0])).compared == 2


def test_a_torch_function_and_its_incoming_gradients(torch):
    seen = []

    def backward(g, x):
        seen.append((g.is_contiguous(), 0 in g.stride(), g.stride()))
        return 2 * x * g

    function = function_of(torch, backward)
    check_operation(from_torch(function), X, **QUICK)
    check_operation(from_torch(function.apply), X, **QUICK)
    assert {stride for _, _, stride in seen} >= {(6, 1), (1, 4), (12, 2), (0, 0)}


@pytest.mark.parametrize(
    ("backward", "rule"),
    [
        (lambda g, x: 2 * x * (g if g.is_contiguous() else g.contiguous() * 1.1), "incoming gradient layout"),
        (lambda g, x: 2 * x * (2 * g if 0 in g.stride() else g), "incoming gradient layout"),
        (lambda g, x: 2 * x * g.view(-1).view(x.shape), "incoming gradient layout"),
        (lambda g, x: g.mul_(2).mul_(x), "no mutation"),
        (lambda g, x: (2 * x * g).sum(0), "valid gradient"),
        (lambda g, x: (2 * x * g, g), "valid gradient"),
        (lambda g, x: None, "gradient"),
        (lambda g, x: 2 * x * g.half().to(g.dtype), ("gradient", "linearity")),
        (lambda g, x: x * g, "gradient"),
    ],
)
def test_wrong_torch_functions_are_found(torch, backward, rule):
    function = function_of(torch, backward)
    with pytest.raises((GradientError, CheckError)) as caught:
        check_operation(from_torch(function), X, **QUICK)
    assert caught.value.rule in (rule if isinstance(rule, tuple) else [rule])
    assert "from_torch(MyFunction.apply)" in str(caught.value)


def test_needs_input_grad_reaches_the_function(torch):
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return (g * y if ctx.needs_input_grad[1] else g * 0), g * x

    with pytest.raises(CheckError) as caught:
        check_operation(from_torch(Product), X, X + 1, **QUICK)
    assert caught.value.rule == "independent inputs"


def test_torch_outputs_that_are_views_tuples_or_in_place(torch):
    for function in (
        lambda x: x.t(),
        lambda x: x.relu_(),
        lambda x: x.mul_(2).sin(),
        lambda x: (x.sin(), x.argmax(-1), (x * x).sum(-1)),
        lambda x: {"a": x.split(2, dim=1)},
        lambda x: torch.nn.functional.dropout(x, 0.5),
    ):
        check_operation(from_torch(function), X, **QUICK)


def test_unused_torch_outputs_have_no_gradient(torch):
    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x.clone(), 2 * x

        @staticmethod
        def backward(ctx, g, h):
            return g + 2 * h

    with pytest.raises((CheckError, GradientError), match="NoneType"):
        check_operation(from_torch(Both), X, **QUICK)


def test_a_write_that_autograd_does_not_know_is_reported(torch):
    def forward(x):
        x.data.mul_(2)
        return x.clone()

    with pytest.raises(CheckError) as caught:
        check_operation(from_torch(function_of(torch, lambda g, x: 2 * g, forward)), X, **QUICK)
    assert caught.value.rule == "no mutation"


def test_an_incoming_gradient_in_channels_last_format(torch):
    def backward(g, x):
        is_channels_last = g.is_contiguous(memory_format=torch.channels_last) and not g.is_contiguous()
        return 2 * x * (g * 1.1 if is_channels_last else g)

    with pytest.raises(CheckError, match="in channels-last memory layout"):
        check_operation(from_torch(function_of(torch, backward)), X.reshape(2, 2, 3, 2), **QUICK)


def test_torch_parameters_in_a_plain_list_are_noted(torch):
    class Product(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gain, self.weights = torch.nn.Parameter(torch.ones(6)), [torch.nn.Parameter(torch.eye(6))]

        def forward(self, x):
            return x @ self.weights[0].to(x.dtype) * self.gain

    (note,) = check_layer(from_torch(Product()), X, **QUICK).notes
    assert note.startswith(
        "not checked: the gradient of a tensor of shape (6, 6) that is neither an input nor a parameter"
    )


def test_a_torch_module_is_checked_as_a_layer_and_not_touched(torch):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.3))
    module[0].bias.requires_grad_(False)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    report = check_layer(from_torch(module), X, **QUICK)
    assert report.compared and module.training
    for name, value in module.state_dict().items():
        assert value.dtype == before[name].dtype and torch.equal(value, before[name]), name

    class Detached(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x.detach())

    with pytest.raises(GradientError, match="wrong gradient of input 0") as caught:
        check_layer(from_torch(Detached(6, 2)), X, **QUICK)
    assert "layer = from_torch(module); state = {'weight': array(" in str(caught.value)
    with pytest.raises(TypeError, match=r"got the class Linear; try an instance, Linear\(...\)"):
        from_torch(torch.nn.Linear)


# JAX


@pytest.fixture
def jax():
    return pytest.importorskip("jax", reason="needs jax (extra check-dev)")


def custom(jax, backward):
    function = jax.custom_vjp(lambda x: x * x)
    function.defvjp(lambda x: (x * x, x), lambda x, g: (backward(g, x),))
    return function


def test_jax_functions(jax):
    jnp = jax.numpy
    check_operation(from_jax(custom(jax, lambda g, x: 2 * x * g)), X, **QUICK)
    for function in (
        lambda x: jax.nn.softmax(x) @ jnp.cumsum(x, axis=0).T,
        lambda x: (jnp.sort(x, axis=-1), x.argmax(-1)),
        lambda x: jax.lax.scan(lambda h, row: (jnp.tanh(h + row), h), x[0], x)[1],
        lambda x: jax.lax.fori_loop(0, 3, lambda i, y: y + x[i] ** 2, x[0]),
        lambda x: x.at[jnp.array([0, 0, 2])].add(2 * x[:3])[:, ::-1],
        lambda x: x * 2 if x.shape else x,
    ):
        check_operation(from_jax(function), X, **QUICK)


def test_complex_division_and_batched_loops_agree_with_jax(jax):
    jnp = jax.numpy

    def halved(x):
        return jax.lax.while_loop(lambda y: abs(y) > 0.3, lambda y: y / 2, x)

    def ratio(x):
        return jnp.abs((x + 2j) / (x - 1j) ** 2)

    with jax.enable_x64(True):
        for function in (ratio, jax.grad(lambda x: ratio(x).sum()), jax.vmap(jax.vmap(halved))):
            np.testing.assert_allclose(from_jax(function)(Tensor(X)).data, function(X), rtol=1e-12)


@pytest.mark.slow
def test_values_agree_with_jax(jax):
    jnp, lax = jax.numpy, jax.lax
    ids = np.array([[0, 1], [3, 2], [1, 1]])
    functions = [
        lambda x: jnp.pad(x, 2)[1:-1:2],
        lambda x: lax.pad(x, 0.5, ((1, 2, 1), (-1, 0, 0))),
        lambda x: jnp.take_along_axis(x, jnp.argsort(x, axis=1), axis=1),
        lambda x: x[ids] + jnp.take(x, ids, axis=0, mode="clip"),
        lambda x: x.at[ids[:, 0], ids[:, 1]].max(0.3),
        lambda x: jnp.einsum("ij,kj->ik", x, x) / jnp.linalg.norm(x),
        lambda x: jax.nn.logsumexp(x, axis=0) + jax.nn.gelu(x) + lax.rsqrt(x * x + 1) + jax.nn.sigmoid(x),
        lambda x: jnp.round(10 * x) + jnp.floor(x) + jnp.sign(x) + x // 0.3 + x % 0.7,
        lambda x: lax.dynamic_slice(x, (2, 5), (2, 3)) + lax.dynamic_update_slice(x, x[:2, :2], (3, 3))[:2, :3],
        lambda x: jnp.where(x > 0, x, jnp.nan_to_num(jnp.log(-x))) + jnp.clip(x, -0.5, 0.5),
        lambda x: lax.cumlogsumexp(x) + lax.cummax(x, reverse=True) + jnp.cumprod(x, axis=1),
        lambda x: (
            lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x) + lax.while_loop(lambda y: y.sum() < 9, lambda y: y + 1, x)
        ),
    ]
    for function in functions:
        mine = from_jax(function)(Tensor(X)).data
        with jax.enable_x64(True):
            assert np.allclose(mine, np.asarray(function(jnp.asarray(X))), rtol=1e-12, atol=1e-12)


def test_wrong_jax_functions_are_found(jax):
    for backward, rule in (
        (lambda g, x: x * g, "gradient"),
        (lambda g, x: 2 * x * g * (1.01 if x.dtype == "float32" else 1), "float32 accuracy"),
        (lambda g, x: (2 * x * g).sum(0), "valid gradient"),
        (lambda g, x: 2 * x * jax.numpy.clip(g, -1, 1), "gradient"),
    ):
        with pytest.raises((GradientError, CheckError)) as caught:
            check_operation(from_jax(custom(jax, backward)), X, **QUICK)
        assert caught.value.rule == rule


def test_a_jax_function_that_branches_on_values_is_evaluated_in_jax(jax):
    operation = from_jax(lambda x: x * x if float(x.sum()) > -100 else x)
    assert operation(Tensor(X)).data.shape == X.shape and not operation.numpy
