"""Mixture of experts (models/layers/experts.py): its formula, the balance loss, and models that use it."""

import numpy as np
import pytest

import npx
from autograd import Tensor, no_grad
from models import FeedForward, Transformer, TransformerConfig
from models.layers.experts import Experts, collect_balance_losses
from tests.helpers.small_models import SMALL, batch
from tests.models.test_layers import RNG, build

CONFIG = SMALL | {"n_experts": 4, "experts_per_token": 2}


def make_layer(experts_per_token, n_experts=4):
    return build(Experts, 6, n_experts, experts_per_token, lambda: FeedForward(6, 5))


def probabilities(layer, x):
    z = x @ layer.router.weight.data
    p = np.exp(z - z.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


@pytest.mark.parametrize("experts_per_token", [1, 2])
def test_output_equals_the_formula(experts_per_token):
    layer = make_layer(experts_per_token)
    x = RNG.normal(size=(2, 7, 6))
    y = layer(Tensor(x)).data
    for index in np.ndindex(2, 7):
        p = probabilities(layer, x[index])
        best = np.argsort(-p)[:experts_per_token]
        gates = p[best] / (p[best].sum() if experts_per_token == 2 else 1)
        expected = sum(g * layer.experts[i](Tensor(x[index])).data for g, i in zip(gates, best, strict=True))
        assert np.allclose(y[index], expected, rtol=0, atol=1e-13)


def test_the_balance_loss_equals_its_formula_and_exists_in_training_only():
    layer = make_layer(2)
    x = RNG.normal(size=(40, 6))
    for training, n in ((True, 1), (False, 0)):
        layer.train(training)
        with collect_balance_losses() as losses:
            layer(Tensor(x))
        assert len(losses) == n
        if training:
            p = probabilities(layer, x)
            fractions = np.bincount(p.argmax(axis=1), minlength=4) / 40
            assert losses[0].item() == pytest.approx(4 * (p.mean(axis=0) * fractions).sum())


def test_the_balance_loss_is_added_in_training_and_spreads_the_tokens():
    src, tgt = batch([[3, 4, 5], [6, 7]], [[6, 7], [8, 9, 10]])
    losses = {}
    for weight in (0.0, 0.5):
        model = Transformer(TransformerConfig(**CONFIG, balance_loss_weight=weight), dtype="float64")
        losses[weight] = model.loss(src, tgt).item(), model.eval().loss(src, tgt).item()
    assert losses[0.0][0] == losses[0.0][1] == losses[0.5][1]
    # four layers of experts in the two stacks, each with a balance loss of about 1, its minimum
    assert 0.5 * 4 * 0.8 < losses[0.5][0] - losses[0.5][1] < 0.5 * 4 * 4
    model = Transformer(TransformerConfig(**CONFIG, balance_loss_weight=0.5), dtype="float64")
    # the weight of a micro-batch is its fraction of the update's targets
    assert model.loss(src, tgt, loss_normalizer=14).item() == pytest.approx(losses[0.5][0] / 2)
    assert model.loss(src, tgt, rdrop_weight=1.0).item() == pytest.approx(losses[0.5][0])  # without dropout


def test_cached_decoding_and_any_batch_give_the_same_outputs():
    model = Transformer(TransformerConfig(**CONFIG), dtype="float64").eval()
    src, tgt = batch([[3, 4, 5], [6, 7]], [[6, 7, 8], [8, 9]])
    logits = model(src, tgt).data
    assert np.allclose(logits[1, :3], model(src[1:, :3], tgt[1:, :3]).data[0], rtol=0, atol=1e-12)
    with no_grad():
        tokens, state = model.start_decoding(src)
        for t in range(3):
            assert np.allclose(model.step(tokens, state), logits[:, t], rtol=0, atol=1e-12)
            tokens = tgt[:, t + 1]


def test_sizes_and_operations():
    """A token passes through two of the four experts and the router."""
    one, four = (TransformerConfig(**SMALL | {"n_experts": n, "experts_per_token": 2}) for n in (None, 4))
    expert = 2 * 8 * 12 + 12 + 8
    layers = 4
    assert four.n_parameters() - one.n_parameters() == layers * (3 * expert + 8 * 4)
    difference = four.training_flops(10, 10) - one.training_flops(10, 10)
    assert difference == 6 * 20 * 2 * (2 * 8 * 12 + 8 * 4)


def test_gradient_checkpointing_is_rejected():
    model = Transformer(TransformerConfig(**CONFIG))
    with pytest.raises(ValueError, match=r"does not support experts \(n_experts = 4\); try smaller batches"):
        model.enable_gradient_checkpointing()
    model.enable_gradient_checkpointing(False)


def test_every_expert_gets_a_gradient():
    model = Transformer(TransformerConfig(**CONFIG | {"n_experts": 16}))
    with npx.keyed(0, 0):
        model.loss(*batch([[3]], [[4]])).backward()
    assert all(p.grad is not None for p in model.parameters())
