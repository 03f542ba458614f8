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
    ...  # yours
