"""Anomaly detection (autograd/anomaly.py): the first NaN or infinity is reported with its origin."""

import numpy as np
import pytest

import npx
from autograd import AnomalyError, Tensor, detect_anomaly, neural
from autograd import operations as ops
from models import Transformer, TransformerConfig


def leaf(*values):
    return Tensor(np.array(values, float), requires_grad=True)


def transformer():
    with npx.keyed(1, 0):
        config = TransformerConfig(vocab_size=20, d_model=16, d_ff=32, n_heads=2, n_layers=4, dropout=0.0)
        return Transformer(config), np.array([[4, 5, 6, 2]]), np.array([[1, 6, 5, 4, 2]])


def test_an_anomaly_is_reported_with_layer_and_line():
    model, src, tgt = transformer()
    inner = model.decoder[2].feed_forward.forward

    def planted(x):
        zero = x - x
        return inner(x) + zero / zero

    model.decoder[2].feed_forward.forward = planted
    with np.errstate(all="ignore"):
        assert np.isnan(model.loss(src, tgt, label_smoothing=0.0).item())
        with pytest.raises(AnomalyError) as caught, detect_anomaly():
            model.loss(src, tgt, label_smoothing=0.0).backward()
    text = str(caught.value)
    assert text.startswith("divide: expected a finite result for finite inputs; got nan at (0, 0)")
    line = planted.__code__.co_firstlineno + 2
    assert "decoder.2" in text and f'test_anomaly.py", line {line}, in planted' in text


def test_an_anomaly_in_backward_is_reported_with_the_forward_line():
    x = leaf(0.0, 1.0)
    with np.errstate(all="ignore"), pytest.raises(AnomalyError) as caught, detect_anomaly():
        y = ops.sqrt(x)  # finite, but its derivative at 0 is not
        y.sum().backward()
    assert str(caught.value).startswith("backward of sqrt: expected a finite gradient of argument 0; got inf at (0,)")
    assert "test_anomaly.py" in str(caught.value)


def test_masks_are_not_anomalies_but_bad_parameters_are():
    with detect_anomaly():
        x = leaf(1.0, 2.0)
        neural.COMPOSITIONS["softmax"](x, np.array([True, False])).sum().backward()
        model, src, tgt = transformer()
        model.loss(src, tgt, label_smoothing=0.1).backward()
    with (
        pytest.raises(
            AnomalyError, match=r"multiply: expected finite parameters; got nan at \(0,\) \(1 of 1 values.* in arg"
        ),
        detect_anomaly(),
    ):
        leaf(2.0) * leaf(np.nan)
    with pytest.raises(AnomalyError, match="backward: expected a finite gradient for sum; got inf"), detect_anomaly():
        (x * 2.0).sum().backward(np.asarray(np.inf))
