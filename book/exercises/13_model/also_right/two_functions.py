"""One function for both attentions, and one for the feed-forward network."""

from autograd.neural import attention, layer_norm, linear
from npx import AttentionSpec


def decoder_block(x, memory, w, n_heads):
    def heads(y):
        return y.reshape(*y.shape[:2], n_heads, y.shape[2] // n_heads)

    def attend(x, source, prefix, causal):
        q = x @ w[prefix + "q"]
        k = source @ w[prefix + "k"]
        v = source @ w[prefix + "v"]
        attended = attention(heads(q), heads(k), heads(v), AttentionSpec(causal=causal))
        attended = attended.reshape(x.shape)
        return attended @ w[prefix + "o"]

    def feed_forward(x):
        inner = linear(x, w["w1"], w["b1"], "relu")
        return linear(inner, w["w2"], w["b2"])

    x = layer_norm(x + attend(x, x, "", True), w["gamma1"], w["beta1"])
    x = layer_norm(x + attend(x, memory, "cross_", False), w["gamma2"], w["beta2"])
    x = layer_norm(x + feed_forward(x), w["gamma3"], w["beta3"])
    return x
