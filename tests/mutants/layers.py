"""Bugs in layers (models/layers)."""

import models
import npx
from autograd import OPERATIONS, Tensor, neural
from autograd import operations as ops
from models.layers.positions import add_constant
from models.layers.rms_norm import rms_norm
from models.layers.swiglu import gated_silu
from tests.mutants.base import layer, raw, reroute_gradient, scatter_overwriting, with_vjp

layer(
    "Linear",
    "bias detached",
    lambda self, x: OPERATIONS["linear"](
        x, self.weight, None if self.bias is None else self.bias.detach(), self.activation
    ),
)
layer(
    "LearnedPositions",
    "input detached",
    lambda self, x, start=0: Tensor(x.data) + (self.weight[start : start + x.shape[1]]),
)
layer(
    "FeedForward",
    "dropout's scale computed from the data",
    lambda self, x: self.outer(self.inner(x) * (1 + float(x.data.sum()))),
)
layer(
    "Residual",
    "x detached in the sum",
    lambda self, x, f: neural.layer_norm(f(x) + x.detach(), self.norm.gamma, self.norm.beta, self.norm.eps),
)
layer(
    "LayerNorm",
    "output rounded to float32",
    lambda self, x: neural.layer_norm(x, self.gamma, self.beta, self.eps).astype("float32").astype("float64"),
    "dtype",
)


def weights_of_evaluation(self, x):
    weight = getattr(self, "retained", self.weight) if self.training else self.weight
    if not self.training:
        self.retained = self.weight.detach()
    return OPERATIONS["linear"](x, weight, self.bias, self.activation)


layer("Linear", "weights from the last evaluation used in training", weights_of_evaluation, "state")


def mask_sampled_twice(self, x):
    drop, other = self.next_spec(), self.next_spec()
    if drop is None:
        return x
    return with_vjp(
        x, output=npx.dropout(x.data, drop)[0], vjp=lambda g: (npx.dropout_grad(g, npx.dropout(x.data, other)[1]),)
    )


def joined(parts):
    return ops.concatenate(*parts, axis=-1)


def keys_detached(self, x, memory, spec=npx.AttentionSpec(), cache=None):
    kv, keys = self.key_value(memory), self.n_kv_heads * self.d_k
    kv = joined([kv[..., :keys].detach(), kv[..., keys:]])
    options = self.next_options(spec) | {"n_kv_heads": self.n_kv_heads}
    return self.output(neural.cross_attention(self.query(x), kv, self.n_heads, self.d_k, **options))


def queries_detached(self, x, spec=npx.AttentionSpec(), cache=None):
    qkv, queries = self.query_key_value(x), self.n_heads * self.d_k
    qkv = joined([qkv[..., :queries].detach(), qkv[..., queries:]])
    options = self.next_options(spec) | {"n_kv_heads": self.n_kv_heads}
    return self.output(neural.self_attention(qkv, self.n_heads, self.d_k, **options))


def in_float16(self, x, spec=npx.AttentionSpec(), cache=None):
    qkv = self.query_key_value(x)
    qkv = qkv.astype("float16").astype("float32") if qkv.dtype == npx.float32 else qkv
    options = self.next_options(spec) | {"n_kv_heads": self.n_kv_heads}
    return self.output(neural.self_attention(qkv, self.n_heads, self.d_k, **options))


def second_residual_lost(self, x, memory, spec, cache=None, source_cache=None):
    x = self.attention_residual(x, lambda y: self.attention(y, npx.AttentionSpec(causal=True)))
    x = self.cross_attention_residual(x.detach(), lambda y: self.cross_attention(y, memory, spec))
    return self.feed_forward_residual(x, self.feed_forward)


def rows_from_0(self, x, start=0):
    length, weight = x.shape[1], self.weight.data

    def vjp(g):
        gw = npx.zeros(weight.shape, weight.dtype)
        gw[:length] = g.sum(axis=0)
        return g, gw

    return with_vjp(x, self.weight, output=x.data + weight[start : start + length], vjp=vjp)


def linear_retaining(name):
    """Return a forward of Linear whose gradients use an input or weight retained as an attribute."""

    def forward(self, x):
        y, vjp = raw("linear")(x.data, self.weight.data, None)
        self.retained = x.data if name == "last input" else getattr(self, "retained", self.weight.data.copy())

        def grad(g):
            if name == "last input":
                _, right = raw("linear")(self.retained, self.weight.data, None)
                return (vjp(g)[0], right(g)[1]) if self.retained.shape == x.shape else vjp(g)[:2]
            return g @ self.retained.T, vjp(g)[1]

        y = with_vjp(x, self.weight, output=y, vjp=grad)
        y = y if self.bias is None else y + self.bias
        return ops.relu(y) if self.activation else y

    return forward


layer("Linear", "input of the latest call used", linear_retaining("last input"), "state")
layer("Linear", "weights of the first call used", linear_retaining("first weights"), "state")
layer("Dropout", "backward samples another mask", mask_sampled_twice)
layer(
    "Dropout",
    "gradient scaled in evaluation mode",
    lambda self, x: (
        neural.dropout(x, drop)
        if (drop := self.next_spec())
        else with_vjp(x, output=x.data, vjp=lambda g: (g * (1 - self.rate),))
        if self.rate < 1
        else x
    ),
)
layer(
    "Residual",
    "x detached in the sum (pre-norm)",
    lambda self, x, f: (
        self.norm.residual_norm(x, f(x), self.dropout)
        if self.is_post_norm
        else x.detach() + self.dropout(f(self.norm(x)))
    ),
)
layer(
    "Residual",
    "gradient skips the norm (pre-norm)",
    lambda self, x, f: (
        self.norm.residual_norm(x, f(x), self.dropout)
        if self.is_post_norm
        else x + self.dropout(f(reroute_gradient(self.norm(x), x)))
    ),
)
layer("LayerNorm", "gain detached", lambda self, x: neural.layer_norm(x, self.gamma.detach(), self.beta, self.eps))
layer(
    "LayerNorm",
    "bias detached in evaluation mode",
    lambda self, x: neural.layer_norm(x, self.gamma, self.beta if self.training else self.beta.detach(), self.eps),
    "special value",
)
layer("RMSNorm", "gain detached", lambda self, x: rms_norm(x, self.gain.detach(), self.eps))
layer("CrossAttention", "keys detached", keys_detached)
layer("SelfAttention", "queries detached", queries_detached)
layer("SelfAttention", "computed in float16 for float32", in_float16, "dtype")
layer("DecoderLayer", "second residual input detached", second_residual_lost)
layer(
    "EncoderLayer",
    "feed-forward residual input detached",
    lambda self, x, spec, cache=None: self.feed_forward_residual(
        self.attention_residual(x, lambda y: self.attention(y, spec)).detach(), self.feed_forward
    ),
)
layer("LearnedPositions", "gradient added to rows 0, 1, ... for any start", rows_from_0, "special value")
layer(
    "SplitSinusoidalPositions",
    "input detached if start > 0",
    lambda self, x, start=0: add_constant(
        x.detach() if start else x, models.sinusoids(start + x.shape[1], self.d_model, False, x.dtype)[start:]
    ),
    "special value",
)
layer(
    "SwiGLU",
    "gate detached",
    lambda self, x: gated_silu(
        joined([(y := self.gate_value(x))[..., : y.shape[-1] // 2].detach(), y[..., y.shape[-1] // 2 :]])
    ),
)
layer(
    "Embedding",
    "only the last of repeated ids gets a gradient",
    lambda self, ids: with_vjp(
        self.weight,
        output=self.weight.data[ids] * self.scale,
        vjp=lambda g: (scatter_overwriting(self.weight.shape, ids, g * self.scale),),
    ),
    "special value",
)
