"""Cases of models/layers/recurrent.py, convolution.py and restricted_attention.py.

They are drawn from a few calls, each of which hypothesis tries once, because checking a recurrence takes long.
"""

from hypothesis import strategies as st

import models
import npx
from models.architectures.convolutional import ByteNetLayer, ConvS2SDecoderLayer, ConvS2SEncoderLayer
from models.architectures.recurrent import RecurrentDecoderLayer, RecurrentEncoderLayer
from tests.cases.base import REAL, Call, array, case, edges, packing, sample
from tests.cases.layers import make_layer, small

LENGTHS = 3, 0, 1, 2


@case
def layer_LSTM(draw, layer_class=models.LSTM):
    layer = make_layer(layer_class, 2, 1, reverse=True)
    return Call((sample(3, 2), draw(st.just(packing(2, 1)))), layer=layer, n_directions=3, modes=("train",))


@case
def layer_GRU(draw):
    return layer_LSTM(draw, models.GRU)


@case
def layer_Recurrent(draw):
    return layer_LSTM(draw)


@case
def layer_Bidirectional(draw):
    layer = make_layer(models.Bidirectional, draw(st.sampled_from([models.LSTM, models.GRU])), 2, 1)
    return Call((sample(2, 2, 2), None, npx.asarray([2, 4])), layer=layer, n_directions=3, modes=("train",))


@case
def layer_Convolution(draw):
    layer = make_layer(models.Convolution, 2, 2, 3, 2, causal=True, separable=draw(st.booleans()))
    return Call((sample(1, 4, 2),), layer=layer, n_directions=3, modes=("train",))


@case
def layer_RestrictedSelfAttention(draw):
    layer = make_layer(models.RestrictedSelfAttention, 2, 1, window=draw(st.integers(1, 2)))
    return Call((sample(1, 3, 2),), layer=layer, n_directions=3, modes=("train",))


@case
def layer_ConvS2SEncoderLayer(draw, layer_class=ConvS2SEncoderLayer, *options):
    layer = make_layer(layer_class, small(), *options)
    return Call((sample(1, 3, 4), draw(st.just(npx.AttentionSpec()))), layer=layer, n_directions=2, modes=("train",))


@case
def layer_ByteNetLayer(draw):
    return layer_ConvS2SEncoderLayer(draw, ByteNetLayer, 1, draw(st.booleans()))


@case
def layer_RecurrentEncoderLayer(draw):
    return layer_ConvS2SEncoderLayer(draw, RecurrentEncoderLayer, draw(st.integers(0, 1)))


@case
def layer_ConvS2SDecoderLayer(draw):
    inputs = sample(1, 3, 4), sample(1, 2, 4), draw(st.just(npx.AttentionSpec())), sample(1, 3, 4)
    return Call(inputs, layer=make_layer(ConvS2SDecoderLayer, small()), n_directions=2, modes=("train",))


@case
def layer_RecurrentDecoderLayer(draw):
    layer = make_layer(RecurrentDecoderLayer, small(), 1)
    return Call((sample(1, 2, 4), sample(1, 2, 4), draw(st.none())), layer=layer, n_directions=2, modes=("train",))


@case
def operation_take_rows(draw):
    return Call((sample(3, 2), npx.asarray([draw(st.sampled_from([-1, 2])), 0])))


def recurrent_call(z, w, *b, **options):
    """Return a call to a recurrence, which saves its gates and its states."""
    return Call((z, w, *b), options, saved=20 * z.nbytes + 1000)


@case
def operation_lstm(draw):
    return recurrent_call(sample(1, 2, 4), sample(1, 4, seed=1), reverse=draw(st.just(True)))


@case
def operation_gru(draw):
    return recurrent_call(sample(1, 2, 3), sample(1, 3, seed=1), sample(1), reverse=draw(st.booleans()))


@case
def operation_unfold(draw):
    return Call((sample(1, 3, 1), draw(st.integers(1, 2)), 2, draw(st.booleans())), saved=1000)


@case
def operation_glu(draw):
    x = sample(*draw(st.sampled_from([(2,), (0, 2), (2, 3, 4)])))
    return Call((x,), saved=x.nbytes // 2)


@case
def operation_restricted_self_attention(draw):
    spec = npx.AttentionSpec(causal=draw(st.booleans()))
    return Call((sample(1, 3, 3), 1, 1, 2, spec), saved=1 << 20)


@edges("layer LSTM", vary_inputs=False)
def lstm_layer_edges(layer_class=models.LSTM):
    yield Call((sample(1, 2, 2),), layer=make_layer(layer_class, 2, 2), n_directions=3, modes=("train",))


@edges("layer GRU", vary_inputs=False)
def gru_layer_edges():
    return lstm_layer_edges(models.GRU)


@edges("layer Recurrent", vary_inputs=False)
def recurrent_layer_edges():
    return lstm_layer_edges()


@edges("layer Bidirectional", vary_inputs=False)
def bidirectional_edges():
    yield Call(
        (sample(3, 2), packing(2, 1)),
        layer=make_layer(models.Bidirectional, models.LSTM, 2, 1),
        n_directions=3,
        modes=("train",),
    )


@edges("layer Convolution", vary_inputs=False)
def convolution_edges():
    yield Call(
        (sample(4, 2), packing(3, 1)), layer=make_layer(models.Convolution, 2, 3, 3), n_directions=3, modes=("train",)
    )


@edges("layer RestrictedSelfAttention", vary_inputs=False)
def restricted_attention_layer_edges():
    layer = make_layer(models.RestrictedSelfAttention, 4, 2, window=2, dropout=0.5)
    yield Call((sample(2, 3, 4), npx.AttentionSpec(True)), layer=layer, n_directions=3, modes=("train",))


@edges("operation lstm", REAL)
def lstm_edges():
    yield recurrent_call(sample(1, 2, 4), sample(1, 4, seed=1))
    yield recurrent_call(sample(2, 3, 8), sample(2, 8, seed=1), lengths=npx.asarray([1, 4]), reverse=True)
    yield recurrent_call(sample(6, 4), sample(1, 4, seed=1), packing=packing(*LENGTHS), reverse=True)


@edges("operation gru", REAL, vary_inputs=False)
def gru_edges():
    w, b = sample(2, 6, seed=1), sample(2, seed=2)
    yield recurrent_call(sample(1, 2, 6), w, b)
    yield recurrent_call(sample(6, 6), w, b, packing=packing(*LENGTHS), reverse=True)


@edges("operation unfold")
def unfold_edges():
    yield Call((sample(2, 3, 2), 3), saved=1000)
    yield Call((sample(2, 3, 2), 2, 2, True, None, npx.asarray([2, 5])), saved=1000)
    yield Call((sample(6, 2), 4, 1, False, packing(*LENGTHS)), saved=1000)


@edges("operation glu", REAL)
def glu_edges():
    for x in (sample(2, 4), array(0.0, 0.0), array(3.0, -2.0, 800.0, -800.0)):
        yield Call((x,), saved=x.nbytes // 2)


@edges("operation restricted_self_attention")
def restricted_attention_edges():
    yield Call((sample(2, 3, 5), 1, 2, 2, npx.AttentionSpec(True, rotary_base=10.0)), saved=1 << 20)
    yield Call((sample(2, 5, 3), 1, 1, 3, npx.AttentionSpec(kv_lengths=npx.asarray([4, 6]))), saved=1 << 20)
    rows = packing(*LENGTHS)
    spec = npx.AttentionSpec(True, q_packing=rows, kv_packing=rows)
    yield Call((sample(6, 6), 2, 1, 2, spec, npx.DropoutSpec(0.5, npx.Key(1, 2, 3))), saved=1 << 20)


@edges("operation take_rows", REAL, vary_inputs=False)
def take_rows_edges():
    for index in ([0, 2, -1], [-1, -1]):
        yield Call((sample(3, 2), npx.asarray(index)))


@edges("layer ConvS2SEncoderLayer", vary_inputs=False)
def convs2s_encoder_layer_edges(layer_class=ConvS2SEncoderLayer, options=((),)):
    rows = packing(*LENGTHS)
    spec = npx.AttentionSpec(q_packing=rows, kv_packing=rows)
    for arguments in options:
        layer = make_layer(layer_class, small(), *arguments)
        yield Call((sample(6, 4), spec), layer=layer, n_directions=2, modes=("train",))


@edges("layer ByteNetLayer", vary_inputs=False)
def residual_convolution_edges():
    return convs2s_encoder_layer_edges(ByteNetLayer, ((0, False), (1, True)))


@edges("layer RecurrentEncoderLayer", vary_inputs=False)
def recurrent_encoder_layer_edges():
    return convs2s_encoder_layer_edges(RecurrentEncoderLayer, ((0,), (1,)))


@edges("layer ConvS2SDecoderLayer", vary_inputs=False)
def attending_convolution_edges():
    spec = npx.AttentionSpec(q_packing=packing(*LENGTHS), kv_packing=packing(1, 0, 1, 2))
    layer = make_layer(ConvS2SDecoderLayer, small())
    yield Call((sample(6, 4), sample(4, 4), spec, sample(6, 4)), layer=layer, n_directions=2, modes=("train",))


@edges("layer RecurrentDecoderLayer", vary_inputs=False)
def recurrent_decoder_layer_edges():
    for i, context in ((0, None), (1, sample(6, 4))):
        layer = make_layer(RecurrentDecoderLayer, small(), i)
        if i:
            yield Call((sample(6, 4), context, packing(*LENGTHS)), layer=layer, n_directions=2, modes=("train",))
