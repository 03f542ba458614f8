"""Texts and formulas of the page: what each kind of block and each operation computes, forward and backward.

In a formula, `_x` is a subscript and `^x` a superscript, and ∂x is the gradient of the loss with respect to x. Names in
braces are replaced (`explain`).
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple


class Explanation(NamedTuple):
    """The forward and the backward pass of a kind of block, each as a text and lines of formulas."""

    text: str
    formulas: tuple[str, ...]
    backward: str
    gradients: tuple[str, ...]


def explain(kind: str, norm: str = "", **values: Any) -> dict[str, Any]:
    """Return the explanation of a kind of block, with the lines of its norm, as JSON."""
    block = BLOCKS[kind]
    lines = NORMS.get(norm, ((), ()))
    return {
        "text": block.text.format(**values),
        "formulas": [line.format(**values) for line in (*block.formulas, *lines[0])],
        "backward": block.backward.format(**values),
        "gradients": [line.format(**values) for line in (*block.gradients, *lines[1])],
    }


# Maps a norm to two groups of formulas, one for the forward pass, norm(s), and one for the backward pass.
NORMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "layer_norm": (
        ("norm(s) = γ ⊙ ŝ + β,  ŝ = (s − μ) / √(σ² + ε)", "μ, σ: mean and deviation of the row s;  γ: gain;  β: bias"),
        (
            "∂s = (∂ŝ − mean(∂ŝ) − ŝ · mean(∂ŝ ⊙ ŝ)) / √(σ² + ε),  ∂ŝ = γ ⊙ ∂norm(s)",
            "∂γ = Σ_rows ∂norm(s) ⊙ ŝ,  ∂β = Σ_rows ∂norm(s)",
        ),
    ),
    "rms_norm": (
        ("norm(s) = γ ⊙ ŝ,  ŝ = s / √(mean(s²) + ε)", "γ: gain"),
        ("∂s = (∂ŝ − ŝ · mean(∂ŝ ⊙ ŝ)) / √(mean(s²) + ε),  ∂ŝ = γ ⊙ ∂norm(s)", "∂γ = Σ_rows ∂norm(s) ⊙ ŝ"),
    ),
}

HEADS = (
    "head_i = A v,  A = softmax(q kᵀ / √d_k{mask}),  √d_k = {root}",
    "y = concat(head_0, …, head_{last}) W^O{bias}",
)
HEADS_BACKWARD = (
    "∂concat = ∂y W^Oᵀ,  ∂W^O = concatᵀ ∂y",
    "∂v = Aᵀ ∂head_i,  ∂A = ∂head_i vᵀ",
    "∂s = A ⊙ (∂A − Σ_row ∂A ⊙ A),  s = q kᵀ / √d_k{mask}",
    "∂q = ∂s k / √d_k,  ∂k = ∂sᵀ q / √d_k",
)
ATTENTION_BACKWARD = (
    "The gradient passes through W^O and is split by head. In each head, it reaches the values through the weights A, "
    "and the weights through the values. The Jacobian of the softmax turns the gradient of the weights into that of "
    "the scaled scores s. "
)
SELF_BACKWARD = (
    *HEADS_BACKWARD,
    "∂x = Σ_heads ∂q W^Qᵀ + ∂k W^Kᵀ + ∂v W^Vᵀ",
    "∂W^Q = xᵀ ∂q,  ∂W^K = xᵀ ∂k,  ∂W^V = xᵀ ∂v",
)
SELF_TEXT = "Each token compares its query with the keys of {whom}. The softmax of these scores weights the values."
NORM_BACKWARD = (
    "Scaling a row (with layer norm, also shifting it) does not change the output of the norm, so the row's gradient "
    "has no component in these directions. "
)

BLOCKS = {
    "self-attention": Explanation(
        SELF_TEXT,
        ("q = x W^Q{bias},  k = x W^K{bias},  v = x W^V{bias}", *HEADS),
        f"{ATTENTION_BACKWARD}The gradient of x is a sum over three paths: queries, keys and values.",
        SELF_BACKWARD,
    ),
    "cross-attention": Explanation(
        "Each output token reads the source: its query comes from the decoder; the keys and values come from m, the "
        "output of the encoder.",
        ("q = x W^Q{bias},  k = m W^K{bias},  v = m W^V{bias}", *HEADS),
        f"{ATTENTION_BACKWARD}The gradient of the decoder's x comes from the queries, and that of the encoder's output "
        "m from the keys and values.",
        (
            *HEADS_BACKWARD,
            "∂x = Σ_heads ∂q W^Qᵀ,  ∂m = Σ_heads ∂k W^Kᵀ + ∂v W^Vᵀ",
            "∂W^Q = xᵀ ∂q,  ∂W^K = mᵀ ∂k,  ∂W^V = mᵀ ∂v",
        ),
    ),
    "feed-forward": Explanation(
        "Each token passes separately through a wider hidden layer with an activation and back to the model's width.",
        ("y = h W_2 + b_2,  h = {activation}(a),  a = x W_1 + b_1",),
        "Each matmul y = x W passes back ∂x = ∂y Wᵀ and adds ∂W = xᵀ ∂y. The activation scales the gradient by its "
        "derivative.",
        (
            "∂W_2 = hᵀ ∂y,  ∂b_2 = Σ_rows ∂y,  ∂h = ∂y W_2ᵀ",
            "∂a = ∂h ⊙ {activation}′(a)",
            "∂W_1 = xᵀ ∂a,  ∂b_1 = Σ_rows ∂a,  ∂x = ∂a W_1ᵀ",
        ),
    ),
    "feed-forward.swiglu": Explanation(
        "Each token passes separately through a wider hidden layer, gated by a second one, and back to the model's "
        "width.",
        ("y = h W_2 + b_2,  h = silu(a) ⊙ c", "a = x W + b,  c = x V + b_c"),
        "Each matmul y = x W passes back ∂x = ∂y Wᵀ and adds ∂W = xᵀ ∂y. The gate passes a gradient to both of its "
        "factors.",
        (
            "∂W_2 = hᵀ ∂y,  ∂b_2 = Σ_rows ∂y,  ∂h = ∂y W_2ᵀ",
            "∂a = ∂h ⊙ c ⊙ silu′(a),  ∂c = ∂h ⊙ silu(a)",
            "∂W = xᵀ ∂a,  ∂V = xᵀ ∂c,  ∂x = ∂a Wᵀ + ∂c Vᵀ",
        ),
    ),
    "residual.post": Explanation(
        "The output of the sub-layer is added to its input, so each sub-layer needs to learn only a change. Each row "
        "is then scaled to a common size.",
        ("y = norm(s),  s = {x} + f(x){alpha}",),
        f"{NORM_BACKWARD}The sum then passes its gradient to both inputs: through the sub-layer, and around it.",
        ("∂f(x) = ∂s,  ∂x = {factor}∂s + the gradient through f",),
    ),
    "residual.pre": Explanation(
        "Each row is scaled to a common size before the sub-layer, whose output is added to the unscaled input, so "
        "that each sub-layer needs to learn only a change.",
        ("y = x + f(norm(x))",),
        "The sum passes its gradient to both inputs: unchanged around the sub-layer, and through it. The gradient that "
        f"returns from the sub-layer passes through the norm. {NORM_BACKWARD}",
        ("∂f = ∂y,  ∂x = ∂y + ∂s,  s = x",),
    ),
    "residual.sandwich": Explanation(
        "Each row is scaled to a common size before the sub-layer and again after it. The result is added to the "
        "unscaled input, so that each sub-layer needs to learn only a change.",
        ("y = x + norm′(f(norm(x)))",),
        "The sum passes its gradient to both inputs: unchanged around the sub-layer, and through its two norms. "
        f"{NORM_BACKWARD}",
        ("∂norm′ = ∂y,  ∂x = ∂y + ∂s,  s = x",),
    ),
    "norm": Explanation(
        "Each row is scaled to a common size, and then by learned factors.",
        ("y = norm(x),  s = x",),
        NORM_BACKWARD,
        ("∂norm(s) = ∂y,  ∂x = ∂s",),
    ),
    "embedding": Explanation(
        "Each token becomes a vector, its row of the embedding table E, to which its position P is added.",
        ("y = {root}E[token] + P[position]{space}{sizes}",),
        "The gradient of each row of y is added to the row of its token in ∂E; a token that occurs twice receives the "
        "sum. {positions}",
        ("∂E[t] = {root}Σ ∂y over the positions of token t",),
    ),
    "output": Explanation(
        "Each row is compared with every token of the vocabulary; a softmax gives the next token's probabilities.",
        ("logits = h Eᵀ{bias},  p = softmax(logits)", "loss = −mean(log p[target])"),
        "{loss} The gradient of the logits is the probability p, minus 1 at the target, divided by the number T of "
        "targets: an update raises the target's logit and lowers all others.",
        ("∂logits = (p − onehot(target)) / T", "∂h = ∂logits E,  ∂E = ∂logitsᵀ h"),
    ),
    "output.labels": Explanation(
        "The vector of {whom} is compared with every label; a softmax gives the probabilities of the labels.",
        ("logits = h Wᵀ{bias},  p = softmax(logits)", "loss = −mean(log p[label])"),
        "{loss} The gradient of the logits is the probability p, minus 1 at the label, divided by the number T of "
        "labels: an update raises the label's logit and lowers all others. Only tokens with a label get a gradient.",
        ("∂logits = (p − onehot(label)) / T", "∂h = ∂logits W,  ∂W = ∂logitsᵀ h"),
    ),
}  # fmt: skip

ALL_TOKENS, EARLIER_TOKENS = "every token", "itself and the tokens before it; those after it are masked"
FIXED = "fixed, no gradient"

# Descriptions of the loss of a model that translates or parses, of one that predicts labels, and of a language model.
OWN_OUTPUT = (
    "The loss compares each prediction with the model's own output, because no reference is available. It is the mean "
    "of −log p over the tokens of the output, and small if the model is confident."
)
OWN_LABELS = (
    "The loss compares each prediction with the model's own label, because no gold label is available. It is the mean "
    "of −log p over the predicted labels, and small if the model is confident."
)
NEXT_TOKEN = (
    "The loss compares each prediction with the next token of the text. It is the mean of −log p over these tokens."
)

# Descriptions of tokens and of their notation.
SUBWORDS = "A token is a subword: a frequent word is one token, and a rare one consists of several. "
SHARED = "Source and target share one vocabulary of {size:,} tokens."
SEPARATE = "Source and target have separate vocabularies; the target's has {size:,} tokens."
LABELED = "The vocabulary of the text has {size:,} tokens."
TEXT_TOKENS = "A token is a character or a subword, one of {size:,} in the vocabulary."
SIGNS = {
    "·ing": "a token that continues a word",
    "␣": "a space",
    "<s>": "beginning of the sentence, which the decoder reads first",
    "</s>": "end of the sentence, which the model predicts last",
}
LABELED_SIGNS = {
    "·ing": SIGNS["·ing"],
    "<s>": "beginning of the text, from which a classifier predicts the label",
    "</s>": "end of the text",
}
TEXT_SIGNS = {"␣": "a space", "⏎": "a line break"}


def notation(task: str, is_shared: bool, size: int) -> dict[str, Any]:
    """Describe the vocabulary, and list the symbols used in tokens with their meanings."""
    text, signs = {
        "text": (TEXT_TOKENS, TEXT_SIGNS),
        "classification": (SUBWORDS + LABELED, LABELED_SIGNS),
        "tagging": (SUBWORDS + LABELED, LABELED_SIGNS),
    }.get(task, (SUBWORDS + (SHARED if is_shared else SEPARATE), SIGNS))
    return {"text": text.format(size=size), "signs": list(signs.items())}


# Formulas of the operations in the Step view: the output y, and the gradients of inputs a and b, given y's gradient g.
OPERATIONS = {
    "absolute": ("y = |a|", "∂a = g ⊙ sign(a)"),
    "add": ("y = a + b", "∂a = g,  ∂b = g"),
    "concatenate": ("y = [a, b, …]", "∂a, ∂b, …: the parts of g"),
    "divide": ("y = a / b", "∂a = g / b,  ∂b = −g ⊙ a / b²"),
    "exp": ("y = exp(a)", "∂a = g ⊙ y"),
    "log": ("y = log(a)", "∂a = g / a"),
    "matmul": ("y = a b", "∂a = g bᵀ,  ∂b = aᵀ g"),
    "max": ("y = max(a)", "∂a = g at the maximum, shared equally if it occurs twice, else 0"),
    "maximum": ("y = max(a, b)", "∂a = g where a > b, else 0;  ∂b = g where b > a, else 0;  g / 2 each where a = b"),
    "mean": ("y = Σ a / n", "∂a = g / n in every entry"),
    "min": ("y = min(a)", "∂a = g at the minimum, shared equally if it occurs twice, else 0"),
    "minimum": ("y = min(a, b)", "∂a = g where a < b, else 0;  ∂b = g where b < a, else 0;  g / 2 each where a = b"),
    "multiply": ("y = a ⊙ b", "∂a = g ⊙ b,  ∂b = g ⊙ a"),
    "negative": ("y = −a", "∂a = −g"),
    "power": ("y = a^n", "∂a = g ⊙ n a^(n−1)"),
    "relu": ("y = max(a, 0)", "∂a = g where a > 0, else 0"),
    "reshape": ("y = a in another shape", "∂a = g in the shape of a"),
    "sigmoid": ("y = 1 / (1 + exp(−a))", "∂a = g ⊙ y ⊙ (1 − y)"),
    "softmax": ("y = exp(a) / Σ_row exp(a)", "∂a = y ⊙ (g − Σ_row g ⊙ y)"),
    "sqrt": ("y = √a", "∂a = g / (2 y)"),
    "stack": ("y = [a, b, …]", "∂a, ∂b, …: the parts of g"),
    "subtract": ("y = a − b", "∂a = g,  ∂b = −g"),
    "sum": ("y = Σ a", "∂a = g in every entry"),
    "swapaxes": ("y = a with two axes swapped", "∂a = g with the same axes swapped"),
    "tanh": ("y = tanh(a)", "∂a = g ⊙ (1 − y²)"),
    "transpose": ("y = aᵀ", "∂a = gᵀ"),
    "where": ("y = a where the condition holds, else b", "∂a = g where it holds, else 0;  ∂b = g where it does not"),
}
BROADCAST = "An input that is broadcast to the shape of the other receives the sum of these gradients."
ELEMENTWISE = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "where")


def is_for_variable(equation: str) -> bool:
    """Return False for an equation such as ∂2 = g, which gives the gradient of a constant."""
    return not re.match(r"∂(?![^\W\d])", equation)


def operation_formulas(name: str, inputs: Sequence[str], repeats: bool) -> list[str]:
    """Return the formulas of an operation and its gradients as lines, or [] if the operation is unknown.

    Args:
        inputs: the names of the inputs, or constants (which have no gradient); these replace a and b in the formulas.
        repeats: whether the shape of an input differs from that of the output.
    """
    named = dict(zip("ab", inputs, strict=False))
    lines = [
        re.sub(r"(?<![A-Za-z])[ab](?![A-Za-z])", lambda match: named.get(match[0], match[0]), line).replace("ᵀᵀ", "")
        for line in OPERATIONS.get(name, ())
    ]
    lines = ["  ".join(filter(is_for_variable, re.split(r"(?<=[,;])  ", line))).rstrip(",;") for line in lines]
    return [*lines, *([BROADCAST] if repeats and name in ELEMENTWISE else [])]
