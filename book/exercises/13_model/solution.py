"""Exercise 13. A decoder block."""

from autograd.neural import attention, layer_norm, linear
from npx import AttentionSpec


def decoder_block(x, memory, w, n_heads):
    """Return the output (B, T, D) of the paper's decoder layer for x (B, T, D) and memory (B, S, D), without dropout.

    All arrays are Tensors. w is a dict: q, k, v, o are the projections (D, D) of the self-attention, and cross_q,
    cross_k, cross_v, cross_o those of the cross-attention. w1 (D, F), b1, w2 (F, D) and b2 belong to the feed-forward
    network, and gamma1, beta1 to gamma3, beta3 to the three norms, in order. q is used as x @ w["q"].

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
