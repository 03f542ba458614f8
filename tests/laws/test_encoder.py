"""Laws of the encoder-only architecture (models/architectures/encoder.py)."""

import math

import numpy as np
import pytest

from autograd import Tensor, observing
from autograd.observe import Observer
from models import Encoder, TransformerConfig

V = 9
BERT = {"token_types": 2, "embedding_norm": True, "pooler": True, "positions": "learned", "max_positions": 8}
SMALL = {"vocab_size": V, "d_model": 8, "d_ff": 12, "n_heads": 2, "n_layers": 2, "dropout": 0.0}


def build(**changes):
    model = Encoder(TransformerConfig(**SMALL | changes, architecture="encoder"), 1, "float64")
    rng = np.random.default_rng(1)
    for p in model.parameters():
        p.data += rng.normal(size=p.shape) * 0.2
    return model.eval()


@pytest.mark.parametrize(
    "options", [{}, BERT, {"positions": "rotary", "norm_placement": "pre"}], ids=["paper", "BERT", "rotary"]
)
def test_every_token_is_read_by_every_other_one_of_its_text(options):
    model = build(**options)
    ids = np.array([[1, 5, 6, 7, 2], [1, 4, 3, 8, 2]])
    before = model(ids).data
    for position in range(1, 4):
        changed = ids.copy()
        changed[0, position] = 3 if ids[0, position] != 3 else 4
        after = model(changed).data
        assert (np.abs(after[0] - before[0]).max(axis=1) > 1e-6).all()
        assert np.allclose(after[1], before[1], rtol=0, atol=1e-12)


def test_token_types_count_the_ends_before_a_token():
    model = build(**BERT)
    ids = np.array([[1, 5, 2, 6, 7, 2], [1, 4, 3, 2, 0, 0]])
    types = np.array([[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1]])
    assert np.array_equal(model.checked_text(ids)[2], types)
    assert np.array_equal(model(ids).data, model(ids, types).data)
    assert np.abs(model(ids).data - model(ids, 0 * types).data)[0].max() > 1e-6


def test_pooling_reads_tokens_and_not_padding():
    model = build(**BERT)
    ids = np.array([[1, 5, 6, 2, 0, 0], [1, 4, 3, 3, 8, 2]])
    hidden, lengths = model.encode(ids)
    mean = [row[:n].mean(axis=0) for row, n in zip(hidden.data, lengths, strict=True)]
    assert np.allclose(model.text_vectors(ids).data, mean, rtol=0, atol=1e-12)
    first = np.tanh(hidden.data[:, 0] @ model.pooler.linear.weight.data + model.pooler.linear.bias.data)
    assert np.allclose(model.text_vectors(ids, "first").data, first, rtol=0, atol=1e-12)
    assert np.allclose(model.text_vectors(ids[:1, :4]).data, mean[:1], rtol=0, atol=1e-12)


def test_counts_of_parameters_and_flops():
    config = TransformerConfig(
        **SMALL | {"vocab_size": 6, "src_vocab_size": 11, "pooler": True}, architecture="encoder"
    )
    model = config.build()
    shapes = {name: p.shape for name, p in model.named_parameters()}
    assert shapes["embedding.weight"] == (11, 8) and shapes["projection"] == (6, 8)
    assert config.n_parameters() == model.n_parameters()
    layers = sum(p.size for layer in model.layers for p in layer.parameters() if p.ndim == 2)
    assert config.training_flops(10, 3, length=0) == 6 * (10 * layers + 3 * 6 * 8)


class Multiplications(Observer):
    """Counts the multiplications of rows by matrices of parameters in a forward pass."""

    def __init__(self, model):
        self.count = 0
        self.matrices = {id(p) for p in model.parameters() if p.ndim == 2}

    def on_forward(self, name, args, result):
        tensors = [a for a in args if isinstance(a, Tensor)]
        if tensors and id(tensors[0]) not in self.matrices:  # these are looked up by an embedding
            rows = math.prod(tensors[0].shape[:-1])
            self.count += rows * sum(a.size for a in tensors[1:] if id(a) in self.matrices)


def test_flops_are_those_of_the_matmuls_of_a_masked_batch():
    """Only masked tokens reach the projection to the vocabulary."""
    config = TransformerConfig(**SMALL | {"vocab_size": 50}, architecture="encoder")
    model = config.build()
    rng = np.random.default_rng(0)
    ids = rng.integers(4, 50, (3, 10))
    labels = np.where(rng.random(ids.shape) < 0.2, ids, 0)
    n_labels = int((labels != 0).sum())
    with observing(Multiplications(model)) as multiplications:
        model.loss(ids, labels)
    assert 0 < n_labels < ids.size
    assert 6 * multiplications.count == config.training_flops(ids.size, n_labels, length=0)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda m: m(np.array([[1, 0, 2]])), "text ids: expected padding (0) at the end of a row only; got row 0"),
        (lambda m: m.loss([[1, 5, 2]], [[3, 4]]), "labels: expected shape (1, 3) (a label per token) or (1, 1) (a"),
        (lambda m: m.text_vectors(np.array([[1, 2]]), "max"), "pooling: expected mean or first; got 'max'; try mean"),
    ],
)
def test_invalid_arguments_are_named_in_one_line(call, message):
    with pytest.raises(ValueError) as caught:
        call(build())
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
