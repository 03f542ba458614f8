"""Exercise 13. A decoder block."""

from autograd.neural import attention, layer_norm, linear
from npx import AttentionSpec


def decoder_block(x, memory, w, n_heads):
    """Return the output of the paper's decoder layer, without dropout.

    All arrays are Tensors. x and the output are (B, T, D), and memory is (B, S, D). w is a dict of parameters:
        self-attention: q, k, v, o (D, D); for example, the queries are x @ w["q"]
        cross-attention: cross_q, cross_k, cross_v, cross_o (D, D)
        feed-forward network: w1 (D, F), b1, w2 (F, D), b2
        first, second and third norm: gamma1, beta1, gamma2, beta2, gamma3, beta3

    You can use attention(q, k, v, AttentionSpec(causal=...)), whose arguments and output are (B, T, H, D / H),
    layer_norm(x, gamma, beta), and linear(x, w, b, "relu") or, without an activation, linear(x, w, b).
    """

    def heads(y):
        return y.reshape(*y.shape[:2], n_heads, -1)

    q, k, v = heads(x @ w["q"]), heads(x @ w["k"]), heads(x @ w["v"])
    attended = attention(q, k, v, AttentionSpec(causal=True)).reshape(x.shape)  # no position attends to later ones
    x = layer_norm(x + attended @ w["o"], w["gamma1"], w["beta1"])  # the sum, then the norm

    q, k, v = heads(x @ w["cross_q"]), heads(memory @ w["cross_k"]), heads(memory @ w["cross_v"])
    attended = attention(q, k, v, AttentionSpec()).reshape(x.shape)  # the source is complete: no mask
    x = layer_norm(x + attended @ w["cross_o"], w["gamma2"], w["beta2"])

    inner = linear(x, w["w1"], w["b1"], "relu")
    return layer_norm(x + linear(inner, w["w2"], w["b2"]), w["gamma3"], w["beta3"])
