"""Gradients added where they are summed: `accumulates` vjps in the engine, `accumulate_into` of the kernels, a
model's flat buffer."""

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import models
import npx
from autograd import Tensor, accumulates, differentiable, engine, neural
from autograd import operations as ops
from npx.dispatch import kernel_mode
from npx.precision import dtype
from tests.cases.kernels import edge_calls
from tests.helpers.small_models import SMALL, batch


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """Operations defined in these tests do not stay in the registry."""
    monkeypatch.setattr(engine, "OPERATIONS", dict(engine.OPERATIONS))


def put(gradient, place):
    """The gradient where it is summed, or a new array of it."""
    if place is None:
        return gradient.copy()
    place += gradient
    return place


def weighted(x, y):
    """2 x + 3 y, by a vjp that adds."""
    return 2 * x + 3 * y, accumulates(
        lambda g, accumulate_into: (put(2 * g, accumulate_into[0]), put(3 * g, accumulate_into[1]))
    )


def shared(x, y):
    """x + y, by a vjp that adds nowhere and gives both one new array."""

    def vjp(g, accumulate_into):
        new = g.copy()
        return new, new

    return x + y, accumulates(vjp)


def first_only(x, y):
    """2 x + y, by a vjp that adds for one of the two, and leaves what it was told for the other."""
    return 2 * x + y, accumulates(lambda g, accumulate_into: (put(2 * g, accumulate_into[0]), g.copy()))


PLAIN = {  # the same functions by vjps that know nothing of sums
    "weighted": lambda x, y: (2 * x + 3 * y, lambda g: (2 * g, 3 * g)),
    "shared": lambda x, y: (x + y, lambda g: (g, g)),
    "first_only": lambda x, y: (2 * x + y, lambda g: (2 * g, g)),
}
ADDING = {"weighted": weighted, "shared": shared, "first_only": first_only}


def named(functions):
    found = {}
    for name, function in functions.items():
        function.__name__ = function.__qualname__ = f"{name}_{id(functions)}"
        found[name] = differentiable(function)
    return found


@st.composite
def programs(draw):
    """A random graph over two leaves: each step takes two earlier values, perhaps one of them twice."""
    names = st.sampled_from([*ADDING, "add", "multiply"])
    return [(draw(names), draw(st.integers(0, n)), draw(st.integers(0, n))) for n in range(1, draw(st.integers(2, 12)))]


@given(
    program=programs(),
    grads=st.lists(st.sampled_from(["none", "there", "wide", "strided"]), min_size=2, max_size=2),
    one=st.booleans(),
)
def test_random_graphs_give_the_same_numbers_where_vjps_add(program, grads, one):
    """Whatever is shared, borrowed or used twice; for leaves without a gradient, with one, a wider one, a strided one.

    The numbers are small integers, so that no order of additions rounds.
    """

    def run(functions):
        operations = named(functions) | {"add": ops.add, "multiply": ops.multiply}
        leaves = [Tensor(np.float32([[1, -1, 2], [3, 0, 1]]) * (i + 1), requires_grad=True) for i in range(2)]
        for leaf, kind in zip(leaves, grads, strict=True):
            wide = np.ones((2, 6), "float64" if kind == "wide" else "float32")
            leaf.grad = {"none": None, "strided": wide[:, ::2]}.get(kind, wide[:, :3].copy())
        values = [leaves[0], leaves[0] if one else leaves[1]]
        for name, i, j in program:
            a, b = values[i], values[j]
            values.append(operations[name](a, b) if name != "multiply" else operations[name](a, b.data % 3 - 1))
        seed = np.float32([[1, 2, 1], [0, 1, -1]])
        values[-1].backward(seed)
        assert np.array_equal(seed, np.float32([[1, 2, 1], [0, 1, -1]])), "the incoming gradient is nobody's sum"
        return [leaf.grad for leaf in leaves]

    for expected, found in zip(run(PLAIN), run(ADDING), strict=True):
        assert (expected is None) == (found is None)
        if expected is not None:
            assert expected.dtype == found.dtype and np.array_equal(expected, found)


def places_of(*parents, before=()):
    """Where an adding vjp over `parents` is told to add; `before`: uses of the first, made later and so run earlier."""
    seen = []

    @differentiable
    def watched(*arrays):
        def vjp(g, accumulate_into):
            seen.append(accumulate_into)
            return tuple(g.copy() for _ in arrays)

        return sum(arrays), accumulates(vjp)

    @differentiable
    def use(x, way):
        return x * 1.0, accumulates(lambda g, accumulate_into: (g.copy(),)) if way == "adds" else lambda g: (g,)

    y = watched(*parents)
    for way in before:
        y = y + use(parents[0], way)
    y.backward(np.ones(y.shape, y.dtype))
    return seen[0]


def test_where_a_vjp_may_add():
    """The engine's own contiguous sums: of leaves their grad, of inner values what is not borrowed; none twice."""
    leaf = Tensor(np.ones(3), requires_grad=True)
    assert places_of(leaf) == (None,), "no gradient yet"
    buffer = leaf.grad = np.zeros(3)
    assert places_of(leaf)[0] is buffer
    twice = places_of(leaf, leaf)
    assert twice[0] is buffer and twice[1] is None, "two products at once would race for one array"
    leaf.grad = np.zeros(6)[::2]
    assert places_of(leaf) == (None,), "reshaping such a sum would copy it"

    leaf.grad = None
    assert places_of(leaf * 1.0) == (None,)
    assert places_of(leaf * 1.0, before=["borrows"]) == (None,), "a borrowed gradient is somebody else's"
    assert places_of(leaf * 1.0, before=["adds"])[0] is not None, "a new one is the engine's"
    assert places_of(leaf * 1.0, before=["borrows", "borrows"])[0] is not None, "a sum is the engine's"
    assert places_of(Tensor(np.ones(3)), leaf)[0] is None


def test_what_an_adding_vjp_gives_away_is_not_copied():
    given_away = []

    @differentiable
    def gives(x):
        return x * 1.0, accumulates(lambda g, accumulate_into: given_away.append(g * 2) or (given_away[-1],))

    leaf = Tensor(np.ones(3), requires_grad=True)
    gives(leaf).backward(np.ones(3))
    assert leaf.grad is given_away[0]


@pytest.mark.parametrize("shape", [(3, 2), (2, 3, 2)])
def test_an_input_of_several_products_has_the_sum_of_their_gradients(shape):
    """The second product that is walked adds to the sum that the first began."""
    numbers = np.random.default_rng(0)
    leaf, weights = numbers.normal(size=shape), [numbers.normal(size=(2, 4)) for _ in range(3)]
    found = []
    for product in (neural.linear, neural.composed_linear):
        x = Tensor(leaf, requires_grad=True)
        y = ops.exp(x)
        parts = [ops.sum(product(y, Tensor(w)) * (k + 1.0)) for k, w in enumerate(weights)]
        (parts[0] + parts[1] + parts[2]).backward()
        found.append(x.grad)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-13)


def test_an_array_given_to_two_is_nobody_s_to_add_to():
    both, a, b = named({"shared": shared})["shared"], *(Tensor(np.ones(2), requires_grad=True) for _ in range(2))
    x, y = a * 1.0, b * 1.0
    (x * 10.0 + y * 100.0 + both(x, y)).backward(np.ones(2))
    both(a, b).backward(np.ones(2))
    assert np.array_equal(a.grad, [12, 12]) and np.array_equal(b.grad, [102, 102])
    a, b = (Tensor(np.ones(2), requires_grad=True) for _ in range(2))
    both(a, b).backward(np.ones(2))
    a.grad += 5
    assert np.array_equal(b.grad, [1, 1])


def test_a_wrong_shape_is_refused_of_an_adding_vjp_too():
    @differentiable
    def faulty(x):
        return x * 1.0, accumulates(lambda g, accumulate_into: (g[:1].copy(),))

    with pytest.raises(RuntimeError, match=r"faulty: expected its vjp to give \(2,\)"):
        faulty(Tensor(np.ones(2), requires_grad=True)).backward(np.ones(2))


# Kernels: `accumulate_into`


def takes_into(kernel):
    return kernel.grad is not None and "accumulate_into" in inspect.signature(kernel.grad.reference).parameters


INTO = [name for name, kernel in npx.KERNELS.items() if takes_into(kernel)]
MODES = [("reference", "float64"), ("fast", "float64"), ("fast", "float32")]
MODES += [("emulate", name) for name in ("float32", "float16", "bfloat16")]


def test_kernels_that_add():
    assert sorted(INTO) == [
        "dropout_residual_norm", "embedding", "layer_norm", "linear", "linear_cross_entropy"
    ]  # fmt: skip


@pytest.mark.parametrize(("mode", "numbers"), MODES)
@pytest.mark.parametrize("name", INTO)
def test_a_kernel_adds_its_gradient_to_what_is_there(name, mode, numbers):
    """As much as it gives without a place, to sums of its own dtype and of float32; to some of them, or all."""
    kernel, numbers = npx.KERNELS[name], dtype(numbers)
    for number, call in enumerate(edge_calls(name, numbers)):
        if call.options.get("grad") is False:
            continue

        def gradients(accumulate_into, call=call):
            with kernel_mode(mode):
                y, saved = kernel(*npx.dispatch.copied(call.inputs), **call.options)
                g = np.random.default_rng(1).normal(size=y.shape).astype(y.dtype)
                options = {} if accumulate_into is None else {"accumulate_into": accumulate_into}
                found = kernel.grad(g, saved, **options)
            return found if isinstance(found, tuple) else (found,)

        plain = gradients(None)
        without = {
            "layer_norm": 1,
            "dropout_residual_norm": 2,
            "linear_cross_entropy": 1,
        }  # a place: all but parameters
        tail = len(plain) - without.get(name, 0)
        of = plain[len(plain) - tail :]
        for kind in {numbers, np.result_type(numbers, "float32")}:
            for chosen in {(True,) * tail, tuple(i == (number + 1) % tail for i in range(tail))}:
                before = [
                    None if x is None or not take else np.random.default_rng(2).normal(size=x.shape).astype(kind)
                    for x, take in zip(of, chosen, strict=True)
                ]
                accumulate_into = [None if x is None else x.copy() for x in before]
                found = gradients(accumulate_into[0] if tail == 1 else tuple(accumulate_into))[len(plain) - tail :]
                for value, start, place, result in zip(of, before, accumulate_into, found, strict=True):
                    if value is None:
                        assert result is None
                        continue
                    assert result is place or result.dtype == value.dtype
                    expected = value.astype("float64") + (0 if result is not place else start.astype("float64"))
                    near = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "float64": 1e-12}[numbers.name]
                    size = max(1.0, float(np.abs(expected).max(initial=0)))
                    assert np.abs(result.astype("float64") - expected).max(initial=0) <= near * size
                    if kind == np.result_type(numbers, "float32") and all(chosen) and mode != "reference":
                        assert result is place, "float32 sums are always added to"


# A model: gradients in a flat buffer


@pytest.mark.parametrize("mode", ["fast", "reference", "emulate"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_flat_buffer_receives_what_parameters_without_one_do(mode, norm):
    """Bit for bit after one backward in float32, and twice as much, to rounding, after two; tied weights, too."""
    src, tgt = batch([[3, 4, 5, 4], [6]], [[7, 8], [9, 10, 3]])
    config = models.TransformerConfig(**SMALL | {"norm": norm, "dropout": 0.1, "attention_bias": True})
    found = []
    for flat in (False, True):
        model = models.Transformer(config, seed=3)
        buffer = models.FlatParameters(model) if flat else None
        with kernel_mode(mode):
            for _ in range(2 if flat else 1):
                with npx.keyed(1, 1):
                    model.loss(src, tgt).backward()
                if buffer is not None and len(found) < 2:
                    found.append({n: p.grad.copy() for n, p in model.named_parameters()})
        found.append({n: p.grad for n, p in model.named_parameters()})
    alone, once, twice = found
    for name, g in alone.items():
        size = max(1e-3, float(np.abs(g).max()))
        assert np.abs(once[name] - g).max() <= 2e-6 * size, name
        assert np.abs(twice[name] - 2 * g).max() <= 1e-5 * size, name


def test_a_step_makes_no_array_of_a_weight_s_size_twice(monkeypatch):
    """The products of a backward that finds sums go there: nothing is left for the engine to add."""
    w = Tensor(np.random.default_rng(0).normal(size=(4, 5)), requires_grad=True)
    w.grad = buffer = np.zeros((4, 5))
    refused = lambda *args: pytest.fail("added by the engine")  # noqa: E731
    monkeypatch.setattr(engine, "_add_to_leaf", refused)
    neural.linear(Tensor(np.ones((3, 4))), w).backward(np.ones((3, 5)))
    assert w.grad is buffer and np.array_equal(buffer, np.full((4, 5), 3.0))
