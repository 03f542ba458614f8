"""Modules (models/module.py, parameters.py): parameter names, state, training modes, and the flat buffer."""

import copy
import pickle

import numpy as np
import pytest

import npx
from autograd import Tensor
from models import FlatParameters, LayerNorm, Linear, Module, Parameter, Transformer, TransformerConfig
from train.learn.optimizer import Adam


class Tree(Module):
    """A module with a parameter, a child, a list of children, and a parameter shared by two of them."""

    def __init__(self):
        self.scale = Parameter(np.full(3, 2.0, "float32"))
        self.norm = LayerNorm(3)
        self.stack = [LayerNorm(2), LayerNorm(4)]
        self.tied = LayerNorm(3)
        self.tied.gamma = self.norm.gamma
        self.nothing = None
        self.number = 5

    def forward(self, x):
        return self.tied(self.norm(x) * self.scale)


NAMES = [
    "scale",
    "norm.gamma",
    "norm.beta",
    "stack.0.gamma",
    "stack.0.beta",
    "stack.1.gamma",
    "stack.1.beta",
    "tied.beta",
]


def test_named_parameters_are_in_order_and_shared_ones_appear_once():
    tree = Tree()
    assert [name for name, _ in tree.named_parameters()] == NAMES
    assert tree.n_parameters() == 3 + 6 + 4 + 8 + 3 == sum(p.size for p in tree.parameters())
    assert all(isinstance(p, Parameter) and p.requires_grad for p in tree.parameters())


def test_training_mode_reaches_every_module():
    tree = Tree()
    modules = [tree, tree.norm, *tree.stack, tree.tied]
    assert all(m.training for m in modules)
    assert tree.eval() is tree and not any(m.training for m in modules)
    assert tree.train() is tree and all(m.training for m in modules)


def test_a_module_without_forward_raises():
    class Empty(Module):
        pass

    with pytest.raises(NotImplementedError, match=r"^Empty must define forward\(\)$"):
        Empty()()


def test_state_round_trips():
    tree, other = Tree(), Tree()
    rng = np.random.default_rng(0)
    for p in tree.parameters():
        p.data[...] = rng.normal(size=p.shape)
    state = tree.state_dict()
    assert list(state) == NAMES and all(type(a) is np.ndarray for a in state.values())
    other.load_state_dict(state)
    for name, array in other.state_dict().items():
        assert np.array_equal(array, state[name])
    assert np.array_equal(other.tied.gamma.data, state["norm.gamma"]), "shared parameters must stay shared"
    state["scale"][...] = 7
    assert not (tree.scale.data == 7).any() and not (other.scale.data == 7).any(), "the state must be a copy"


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda s: s.pop("norm.beta"), "missing norm.beta"),
        (lambda s: s.update(extra=np.zeros(1)), "unexpected extra"),
        (lambda s: s.update(scale=np.zeros((3, 1))), r"scale has shape \(3, 1\) instead of \(3,\)"),
        (lambda s: s.clear(), "missing scale; missing norm.gamma; missing norm.beta and 5 more"),
    ],
)
def test_loading_is_strict_and_changes_nothing_on_error(change, message):
    tree = Tree()
    state = {name: array + 1 for name, array in tree.state_dict().items()}
    before = tree.state_dict()
    change(state)
    with pytest.raises(ValueError, match=message) as caught:
        tree.load_state_dict(state)
    assert "\n" not in str(caught.value) and "8 parameters of this Tree" in str(caught.value)
    for name, array in tree.state_dict().items():
        assert np.array_equal(array, before[name])


def test_parameters_are_views_of_the_flat_buffer():
    tree = Tree()
    before = tree.state_dict()
    tree.scale.grad = np.full(3, 5, "float32")
    flat = FlatParameters(tree)
    assert list(flat.spans) == NAMES and flat.data.shape == flat.flatten_grad().shape == (tree.n_parameters(),)
    assert sorted(s.start for s in flat.spans.values())[1:] == sorted(s.stop for s in flat.spans.values())[:-1]
    for name, p in tree.named_parameters():
        assert np.array_equal(p.data, before[name])
        assert np.shares_memory(p.data, flat.data) and np.shares_memory(p.grad, flat.flatten_grad())
        assert np.array_equal(flat.data[flat.spans[name]], before[name].reshape(-1))
    assert np.array_equal(flat.flatten_grad()[flat.spans["scale"]], [5, 5, 5]), "existing gradients must be kept"
    flat.data += 1
    assert np.array_equal(tree.stack[1].beta.data, [1, 1, 1, 1])
    tree.load_state_dict(before)
    assert np.array_equal(flat.data[flat.spans["norm.gamma"]], [1, 1, 1]), "loading must write into the flat array"
    flat.zero_grad()
    assert not tree.scale.grad.any()


def test_backward_writes_into_the_flat_gradient():
    tree = Tree()
    flat = FlatParameters(tree)
    buffer = flat.flatten_grad()
    for _ in range(2):
        tree(Tensor(np.array([[1, 2, 4]], "float32"))).sum().backward()
    assert flat.flatten_grad() is buffer and np.array_equal(flat.flatten_grad()[flat.spans["tied.beta"]], [2, 2, 2])
    assert not flat.flatten_grad()[flat.spans["stack.0.gamma"]].any()
    assert all(np.shares_memory(p.grad, buffer) for p in tree.parameters())


@pytest.mark.parametrize("chunk_size", [0, 7, 1 << 17])
def test_gradients_are_separate_until_they_are_flattened(monkeypatch, chunk_size):
    """Chunks are in the order of the weights; a missing gradient counts as zeros."""
    monkeypatch.setattr("models.parameters.CHUNK_SIZE", chunk_size)
    tree, other = Tree(), Tree()
    flat = FlatParameters(tree)
    reference = FlatParameters(other)
    buffer = reference.flatten_grad()
    for module in (tree, other):
        for _ in range(2):
            module(Tensor(np.array([[1, 2, 4]], "float32"))).sum().backward()
    assert flat.grad is None and tree.stack[0].gamma.grad is None, "reading `grad` must not create the array"
    assert not np.shares_memory(tree.tied.beta.grad, buffer)
    spans, chunks = zip(*flat.gradient_chunks(), strict=True)
    assert [s.start for s in spans] == [0, *(s.stop for s in spans[:-1])] and spans[-1].stop == flat.data.size
    assert len(chunks) == {0: len(NAMES), 1 << 17: 1}.get(chunk_size, len(chunks))
    assert np.array_equal(np.concatenate(chunks), buffer) and next(reference.gradient_chunks())[1] is buffer
    assert np.array_equal(flat.flatten_grad(), buffer), "the flat gradient must contain the separate ones"
    assert all(np.shares_memory(p.grad, flat.flatten_grad()) for p in tree.parameters())
    for parameters in (flat, FlatParameters(third := Tree())):
        parameters.zero_grad()
    assert not flat.flatten_grad().any() and all(p.grad is None for p in third.parameters())


def test_a_flat_buffer_has_one_dtype():
    tree = Tree()
    tree.scale.data = tree.scale.data.astype("float64")
    with pytest.raises(ValueError, match="one dtype; got .*float32.*float64"):
        FlatParameters(tree)
    with pytest.raises(ValueError, match="got no parameters"):
        FlatParameters(Module())


def test_parameters_lie_in_one_buffer_at_a_time():
    """A new buffer can be created once the first has been deleted."""
    tree = Tree()
    flat = FlatParameters(tree)
    with pytest.raises(ValueError, match="that no other FlatParameters contains; got scale; try"):
        FlatParameters(tree)
    with pytest.raises(ValueError, match="got gamma; try"):
        FlatParameters(tree.stack[0])
    flat.data += 1
    before = tree.state_dict()
    del flat
    second = FlatParameters(tree)
    assert all(np.array_equal(second.data[second.spans[name]], x.ravel()) for name, x in before.items())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"])
def test_a_copy_has_its_own_weights_and_is_trainable(copied):
    """Neither a FlatParameters nor an Adam can be copied without its module."""
    tree = Tree()
    flat = FlatParameters(tree)
    other = copied(tree)
    before = copied(tree).state_dict()
    flat.data += 1
    assert other.state_dict().keys() == before.keys()
    assert all(np.array_equal(x, before[name]) for name, x in other.state_dict().items())
    other_flat = FlatParameters(other)
    other_flat.data[...] = 7
    assert all((p.data == 7).all() for _, p in other.named_parameters()) and not (flat.data == 7).any()
    with pytest.raises(TypeError, match="cannot be copied or pickled .*; try copying the module, then Adam"):
        copied(flat)


@pytest.mark.parametrize("change", ["grown", "lost", "exchanged"])
def test_a_buffer_of_a_changed_module_raises(change):
    tree = Tree()
    adam = Adam(tree)
    if change == "grown":
        tree.stack.append(LayerNorm(5))
    elif change == "lost":
        tree.tied = None
    else:
        tree.scale = Parameter(np.ones(3, "float32"))
    for use in (adam.flat.zero_grad, lambda: adam.step(0.1)):
        with pytest.raises(
            ValueError, match="the parameters of Tree have changed since .*; create FlatParameters and Adam after"
        ):
            use()
    assert adam.steps == 0


def test_an_unpickled_module_is_trainable_in_another_process():
    module = LayerNorm(3)
    module.gamma.changed_at = 10**15  # as after many operations in the first process
    read = pickle.loads(pickle.dumps(module))
    read(Tensor(np.ones((2, 3), "float32"))).sum().backward()
    assert read.beta.grad.tolist() == [2, 2, 2]


def test_parameters_in_lists_tuples_and_dicts_are_found():
    class Deep(Module):
        def __init__(self):
            self.gains = [Parameter(np.ones(2, "float32")), Parameter(np.ones(3, "float32"))]
            self.heads = {"de": LayerNorm(2), "fr": (LayerNorm(3), {"last": Parameter(np.ones(1, "float32"))})}
            self.words = ["no", 3, None]

    deep = Deep()
    norms = ["heads.de.gamma", "heads.de.beta", "heads.fr.0.gamma", "heads.fr.0.beta"]
    assert [name for name, _ in deep.named_parameters()] == ["gains.0", "gains.1", "heads.fr.1.last", *norms]
    assert not deep.eval().heads["fr"][0].training


class Square(Module):
    """The sum of squares of two weights, whose gradient is 2 w."""

    def __init__(self):
        self.first, self.second = Parameter(np.ones(2, "float32")), Parameter(np.full(3, 2.0, "float32"))

    def forward(self):
        return (self.first * self.first).sum() + (self.second * self.second).sum()


def test_frozen_parameters_are_not_updated():
    """Neither weight decay nor remaining momentum updates frozen parameters; a new Adam trains them again."""
    square = Square()
    square.second.requires_grad = False
    adam = Adam(square, weight_decay=0.1)
    assert adam.flat.size == 2 and square.second.flat_ref is None
    square().backward()
    adam.step(0.1)
    assert (square.second.data == 2).all() and square.second.grad is None and (square.first.data < 1).all()
    square.second.requires_grad = True
    with pytest.raises(ValueError, match="the parameters of Square have changed since .*; create FlatParameters"):
        adam.step(0.1)
    with pytest.raises(ValueError, match="that no other FlatParameters contains; .* or deleting it and its Adam"):
        Adam(square)
    del adam
    adam = Adam(square)
    square().backward()
    adam.step(0.1)
    assert (square.second.data < 2).all()


def test_frozen_parameters_return_to_full_precision():
    square = Square()
    square.second.requires_grad = False
    square.second.assign([1 / 3, 2 / 3, 1])
    before = square.second.data.copy()
    FlatParameters(square, np.dtype("float16"))
    assert square.second.dtype == "float16"
    FlatParameters(square)
    assert square.second.master is None and square.second.data.tobytes() == before.tobytes()


@pytest.mark.parametrize("flatten", [False, True])
def test_a_gradient_may_be_assigned(flatten):
    """Assignment works even after `flatten_grad`."""
    square = Square()
    adam = Adam(square)
    square().backward()
    if flatten:
        assert np.linalg.norm(adam.flat.flatten_grad()) > 0
    square.first.grad = None
    square.second.grad = square.second.grad * 0.5
    assert [g.tolist() for _, g in adam.flat.gradient_chunks()] == [[0, 0, 2, 2, 2]]
    assert (adam.flat.flatten_grad()[2:] == 2).all()
    before = square.first.data.copy()
    adam.step(0.1)
    assert (square.first.data == before).all() and (square.second.data < 2).all()
    square.first.grad = np.ones(2, "float32")
    adam.flat.zero_grad()
    assert not adam.flat.flatten_grad().any() and not square.first.grad.any()


def test_weights_outside_of_the_buffer_raise():
    square = Square()
    adam = Adam(square)
    square.first.data = np.full(2, 5, "float32")
    for use in (adam.flat.zero_grad, lambda: adam.step(0.1)):
        with pytest.raises(ValueError, match=r"the data of first was set to an array .*; use p.assign\(values\)"):
            use()


def test_values_that_are_not_modules_or_numbers_raise():
    with pytest.raises(TypeError, match="expected a Module; got list"):
        Adam([Parameter(np.ones(2, "float32"))])
    for wrong in (np.array(["a", "b"]), np.ones(2, "complex64")):
        with pytest.raises(ValueError, match=f"first is {wrong.dtype}"):
            Square().load_state_dict({"first": wrong, "second": np.ones(3)})


def test_a_transformer_round_trips_with_its_dtype():
    config = TransformerConfig(11, d_model=8, d_ff=12, n_heads=2, n_layers=1, norm_placement="pre", positions="learned")
    for dtype in ("float32", "float64"):
        model = Transformer(config, seed=1, dtype=dtype).eval()
        other = Transformer(config, seed=2, dtype=dtype).eval()
        flat = FlatParameters(other)
        ids = np.array([[3, 4, 5]])
        assert not np.allclose(model(ids, ids).data, other(ids, ids).data)
        other.load_state_dict(model.state_dict())
        assert np.array_equal(model(ids, ids).data, other(ids, ids).data)
        assert {a.dtype.name for a in other.state_dict().values()} == {dtype} and flat.data.dtype == dtype


def test_linear_without_bias_has_one_parameter():
    with npx.keyed(0, 0):
        assert [n for n, _ in Linear(2, 3, bias=False).named_parameters()] == ["weight"]
