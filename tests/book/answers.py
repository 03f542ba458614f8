"""Answers such as learners give: for each exercise two correct ones, and wrong ones as edits of these.

They were written from the chapters and blanks alone. Later, hints were added for many answers that had no hint, so the
fraction of these answers that get a hint says little about other answers. An edit is (name, index of the correct
answer, text, replacement).
"""

from collections.abc import Iterator
from typing import NamedTuple


class Answer(NamedTuple):
    exercise: int
    name: str
    source: str


RIGHT: dict[int, tuple[str, str]] = {}
EDITS: dict[int, list[tuple[str, int, str, str]]] = {}


def right_answers() -> Iterator[Answer]:
    for exercise, sources in RIGHT.items():
        for i, source in enumerate(sources):
            yield Answer(exercise, f"right {i + 1}", source)


def wrong_answers() -> Iterator[Answer]:
    for exercise, edits in EDITS.items():
        for name, index, text, replacement in edits:
            source = RIGHT[exercise][index]
            assert text in source, f"{exercise} {name}: {text} is not in the right answer"
            yield Answer(exercise, name, source.replace(text, replacement))


RIGHT[1] = (
    """
def slope(f, x, h):
    return (f(x + h) - f(x - h)) / (2 * h)

def step(x):
    return 2.2e-16 ** (1 / 3) * max(1.0, abs(x))
""",
    """
import sys

def slope(f, x, h):
    right, left = f(x + h), f(x - h)
    return (right - left) / 2 / h

def step(x):
    return sys.float_info.epsilon ** (1 / 3) * (1 + abs(x))
""",
)
EDITS[1] = [
    ("backward difference", 0, "(f(x + h) - f(x - h)) / (2 * h)", "(f(x) - f(x - h)) / h"),
    ("divided by 2, multiplied by h", 0, "/ (2 * h)", "/ 2 * h"),
    ("half a step to each side", 0, "(f(x + h) - f(x - h))", "(f(x + h / 2) - f(x - h / 2))"),
    ("left minus right", 1, "(right - left)", "(left - right)"),
    ("square root of eps", 0, "(1 / 3)", "0.5"),
    ("constant step", 0, "2.2e-16 ** (1 / 3) * max(1.0, abs(x))", "1e-5"),
    ("sign of x", 0, "max(1.0, abs(x))", "max(1.0, x)"),
    ("zero at zero", 1, "(1 + abs(x))", "abs(x)"),
    ("smaller of both", 0, "max(1.0, abs(x))", "min(1.0, abs(x))"),
    ("size squared", 0, "abs(x))", "x * x)"),
]

RIGHT[2] = (
    """
from autograd.operations import unbroadcast

def divide(a, b):
    y = a / b

    def vjp(g):
        return unbroadcast(g / b, a), unbroadcast(-g * a / (b * b), b)

    return y, vjp
""",
    """
from autograd.operations import unbroadcast

def divide(a, b):
    y = a / b

    def vjp(g):
        to_a = g / b
        return (unbroadcast(to_a, a), unbroadcast(-to_a * y, b))

    return y, vjp
""",
)
EDITS[2] = [
    (
        "both summed too early",
        0,
        "unbroadcast(g / b, a), unbroadcast(-g * a / (b * b), b)",
        "unbroadcast(g, a) / b, -unbroadcast(g, b) * a / (b * b)",
    ),
    ("b summed too early", 0, "unbroadcast(-g * a / (b * b), b)", "-unbroadcast(g, b) * unbroadcast(a / (b * b), b)"),
    ("g forgotten for b", 0, "-g * a / (b * b)", "-a / (b * b)"),
    ("g forgotten for a", 0, "unbroadcast(g / b, a)", "unbroadcast(np.ones_like(g) / b, a)"),
    ("quotient squared", 1, "-to_a * y", "-g * y * y"),
    ("g changed in place", 1, "to_a = g / b", "g /= b\n        to_a = g"),
    (
        "rule of the product",
        0,
        "unbroadcast(g / b, a), unbroadcast(-g * a / (b * b), b)",
        "unbroadcast(g * b, a), unbroadcast(g * a, b)",
    ),
    (
        "shapes exchanged",
        0,
        "unbroadcast(g / b, a), unbroadcast(-g * a / (b * b), b)",
        "unbroadcast(g / b, b), unbroadcast(-g * a / (b * b), a)",
    ),
    ("numerator forgotten", 0, "-g * a / (b * b)", "-g / (b * b)"),
    ("one sum over everything", 1, "unbroadcast(-to_a * y, b)", "(-to_a * y).sum()"),
]
RIGHT[2] = tuple("import numpy as np\n" + source for source in RIGHT[2])  # type: ignore[assignment]

RIGHT[3] = (
    """
def backward(last, g):
    gradients = {last: g}
    stack, seen = [last], {last}
    while stack:
        node = stack.pop()
        for parent in node.parents:
            if parent not in seen:
                seen.add(parent)
                stack.append(parent)
    for node in sorted(seen, key=lambda node: -node.number):
        for parent, part in zip(node.parents, node.vjp(gradients[node])):
            gradients[parent] = gradients.get(parent, 0) + part
    return gradients
""",
    """
def backward(last, g):
    gradients = {last: g}
    pending = [last]
    while pending:
        pending.sort(key=lambda node: node.number)
        node = pending.pop()
        for parent, part in zip(node.parents, node.vjp(gradients[node]), strict=True):
            if parent in gradients:
                gradients[parent] += part
            else:
                gradients[parent] = part
                pending.append(parent)
    return gradients
""",
)
EDITS[3] = [
    (
        "parts in a dict",
        0,
        "zip(node.parents, node.vjp(gradients[node]))",
        "dict(zip(node.parents, node.vjp(gradients[node]))).items()",
    ),
    (
        "set of parents",
        0,
        "zip(node.parents, node.vjp(gradients[node]))",
        "zip(dict.fromkeys(node.parents), node.vjp(gradients[node]))",
    ),
    ("g handed to all", 0, "node.vjp(gradients[node])", "node.vjp(g)"),
    ("g ignored", 0, "{last: g}", "{last: 1.0}"),
    (
        "vjp called for each parent",
        0,
        "parent, part in zip(node.parents, node.vjp(gradients[node])):",
        "i, parent in enumerate(node.parents):\n            part = node.vjp(gradients[node])[i]",
    ),
    ("oldest first", 1, "pending.pop()", "pending.pop(0)"),
    ("first part kept", 0, "gradients[parent] = gradients.get(parent, 0) + part", "gradients.setdefault(parent, part)"),
    ("g added again", 0, "gradients.get(parent, 0)", "gradients.get(parent, g)"),
    ("parts multiplied", 1, "+= part", "*= part"),
    (
        "inner nodes removed",
        0,
        "node.vjp(gradients[node])",
        "node.vjp(gradients.pop(node) if node.parents else gradients[node])",
    ),
]

RIGHT[4] = (
    """
import numpy as np

def inputs():
    x = np.array([[2.0, 2.0, 1.0], [3.0, 1.0, 0.0]])
    g = np.array([1.0, -2.0])
    return [(x, g)]
""",
    """
import numpy as np

def inputs():
    rng = np.random.default_rng(0)
    ties = np.array([[5.0, 5.0, 0.0, 1.0]])
    return [(ties, np.array([1.0])), (rng.normal(size=(3, 5)), np.array([0.5, 2.0, -1.0]))]
""",
)
EDITS[4] = [
    ("ties below the maximum", 0, "[[2.0, 2.0, 1.0]", "[[2.0, 1.0, 1.0]"),
    ("no inputs", 0, "[(x, g)]", "[]"),
    ("zero gradients", 0, "[1.0, -2.0]", "[0.0, 0.0]"),
    ("square", 0, "[[2.0, 2.0, 1.0], [3.0, 1.0, 0.0]]", "[[2.0, 2.0], [3.0, 1.0]]"),
    ("g as a column", 0, "[1.0, -2.0]", "[[1.0], [-2.0]]"),
    ("pair without a list", 0, "[(x, g)]", "(x, g)"),
    ("one column", 0, "[[2.0, 2.0, 1.0], [3.0, 1.0, 0.0]]", "[[2.0], [3.0]]"),
]

RIGHT[5] = (
    """
import numpy as np

def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)

    def vjp(g):
        return (y * (g - (g * y).sum(axis=-1, keepdims=True)),)

    return y, vjp
""",
    """
import numpy as np

def softmax(x):
    shifted = x - np.max(x, axis=-1)[..., None]
    exponentials = np.exp(shifted)
    y = exponentials / np.sum(exponentials, axis=-1)[..., None]

    def vjp(g):
        gy = g * y
        return (gy - y * np.sum(gy, axis=-1)[..., None],)

    return y, vjp
""",
)
EDITS[5] = [
    (
        "y in front of the sum only",
        0,
        "y * (g - (g * y).sum(axis=-1, keepdims=True))",
        "g - y * (g * y).sum(axis=-1, keepdims=True)",
    ),
    (
        "y forgotten in front",
        0,
        "y * (g - (g * y).sum(axis=-1, keepdims=True))",
        "g - (g * y).sum(axis=-1, keepdims=True)",
    ),
    ("y forgotten before the sum", 1, "gy - y * np.sum", "gy - np.sum"),
    ("keepdims forgotten in the vjp", 0, "(g * y).sum(axis=-1, keepdims=True)", "(g * y).sum(axis=-1)"),
    ("g ignored", 0, "y * (g - (g * y).sum(axis=-1, keepdims=True))", "y * (1 - y)"),
    ("sign", 0, "y * (g - (g * y).sum(axis=-1, keepdims=True))", "y * ((g * y).sum(axis=-1, keepdims=True) - g)"),
    ("array instead of tuple", 0, "keepdims=True)),)", "keepdims=True)))"),
    ("mean in the vjp", 0, "(g * y).sum(", "(g * y).mean("),
    ("columns in the vjp", 0, "(g * y).sum(axis=-1", "(g * y).sum(axis=0"),
    ("clipped", 0, "np.exp(x - x.max(axis=-1, keepdims=True))", "np.exp(np.clip(x, -700, 700))"),
    ("y minus g", 0, "y * (g - (g * y).sum(axis=-1, keepdims=True))", "y - g"),
]

RIGHT[6] = (
    """
import numpy as np

def layer_norm(x, gamma, beta, eps):
    d = x.shape[-1]
    mean = x.mean(axis=-1, keepdims=True)
    r = np.sqrt(((x - mean) ** 2).mean(axis=-1, keepdims=True) + eps)
    xhat = (x - mean) / r
    y = gamma * xhat + beta

    def vjp(g):
        h = g * gamma
        dx = (h - h.mean(axis=-1, keepdims=True) - xhat * (h * xhat).mean(axis=-1, keepdims=True)) / r
        return dx, (g * xhat).reshape(-1, d).sum(axis=0), g.reshape(-1, d).sum(axis=0)

    return y, vjp
""",
    """
import numpy as np

def layer_norm(x, gamma, beta, eps):
    inverse = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + eps)
    xhat = (x - x.mean(axis=-1, keepdims=True)) * inverse
    y = xhat * gamma + beta
    rows = tuple(range(x.ndim - 1))

    def vjp(g):
        n = x.shape[-1]
        h = g * gamma
        total = h.sum(axis=-1, keepdims=True)
        dot = (h * xhat).sum(axis=-1, keepdims=True)
        return inverse / n * (n * h - total - xhat * dot), (g * xhat).sum(axis=rows), g.sum(axis=rows)

    return y, vjp
""",
)
EDITS[6] = [
    ("not divided by r", 0, "keepdims=True)) / r\n", "keepdims=True))\n"),
    ("divided by the variance", 0, "keepdims=True)) / r\n", "keepdims=True)) / r**2\n"),
    ("sum in the variance term", 0, "(h * xhat).mean(", "(h * xhat).sum("),
    ("sum in the mean term", 0, "h - h.mean(", "h - h.sum("),
    ("gamma from y", 0, "(g * xhat).reshape", "(g * y).reshape"),
    ("gamma from x", 0, "(g * xhat).reshape", "(g * x).reshape"),
    ("beta times gamma", 0, "g.reshape(-1, d)", "h.reshape(-1, d)"),
    ("xhat forgotten", 0, "- xhat * (h * xhat)", "- (h * xhat)"),
    ("sign of the variance term", 0, "- xhat * (h * xhat)", "+ xhat * (h * xhat)"),
    ("n forgotten", 1, "n * h - total", "h - total"),
    ("keepdims forgotten", 0, "(h * xhat).mean(axis=-1, keepdims=True)", "(h * xhat).mean(axis=-1)"),
    ("eps forgotten", 0, " + eps)", ")"),
    (
        "gamma and beta exchanged",
        1,
        "(g * xhat).sum(axis=rows), g.sum(axis=rows)",
        "g.sum(axis=rows), (g * xhat).sum(axis=rows)",
    ),
]

RIGHT[7] = (
    """
import numpy as np
from npx import softmax, softmax_grad

def attention(q, k, v, allowed):
    scale = 1 / np.sqrt(q.shape[-1])
    p, saved = softmax(q @ k.T * scale, allowed)
    y = p @ v

    def vjp(g):
        ds = softmax_grad(g @ v.T, saved) * scale
        return ds @ k, ds.T @ q, p.T @ g

    return y, vjp
""",
    """
import numpy as np
from npx import softmax, softmax_grad

def attention(q, k, v, allowed):
    root = q.shape[1] ** 0.5
    p, saved = softmax(np.where(allowed, q @ k.T / root, -1e30), None)
    y = p @ v

    def vjp(g):
        grad_scores = softmax_grad(g @ v.T, saved)
        return (grad_scores @ k / root, grad_scores.T @ q / root, p.T @ g)

    return y, vjp
""",
)
EDITS[7] = [
    ("root of the number of keys", 0, "q.shape[-1]", "k.shape[0]"),
    ("root of the number of queries", 0, "q.shape[-1]", "q.shape[0]"),
    ("root of the values' size", 0, "q.shape[-1]", "v.shape[-1]"),
    ("v from the scores", 0, "p.T @ g", "ds.T @ g"),
    ("k not scaled", 1, "grad_scores.T @ q / root", "grad_scores.T @ q"),
    ("q not scaled", 1, "grad_scores @ k / root", "grad_scores @ k"),
    ("weights as score gradients", 0, "ds @ k, ds.T @ q", "p @ k * scale, p.T @ q * scale"),
    ("multiplied by the root", 0, "1 / np.sqrt(q.shape[-1])", "np.sqrt(q.shape[-1])"),
    ("mask of 1e-9", 1, "-1e30", "1e-9"),
    ("k from k", 0, "ds.T @ q", "ds.T @ (ds @ k)"),
    ("q and k exchanged", 0, "ds @ k, ds.T @ q", "ds.T @ q, ds @ k"),
    ("softmax gradient of p", 0, "softmax_grad(g @ v.T, saved)", "softmax_grad(p, saved)"),
]

RIGHT[8] = (
    """
import numpy as np

def split(x, n_heads):
    b, t, d = x.shape
    return x.reshape(b, t, n_heads, d // n_heads).transpose(0, 2, 1, 3)

def merge(y):
    b, h, t, d = y.shape
    return y.transpose(0, 2, 1, 3).reshape(b, t, h * d)

def causal(n_queries, n_keys):
    queries = np.arange(n_keys - n_queries, n_keys)[:, None]
    return np.arange(n_keys)[None, :] <= queries
""",
    """
import numpy as np

def split(x, n_heads):
    return np.stack(np.split(x, n_heads, axis=-1), axis=1)

def merge(y):
    return np.concatenate([y[:, i] for i in range(y.shape[1])], axis=-1)

def causal(n_queries, n_keys):
    return np.tri(n_queries, n_keys, n_keys - n_queries, dtype=bool)
""",
)
EDITS[8] = [
    ("head size before time", 0, "d // n_heads).transpose(0, 2, 1, 3)", "d // n_heads).transpose(0, 2, 3, 1)"),
    ("not transposed", 0, "d // n_heads).transpose(0, 2, 1, 3)", "d // n_heads)"),
    ("merge interleaves", 0, "y.transpose(0, 2, 1, 3).reshape", "y.transpose(0, 2, 3, 1).reshape"),
    ("merge adds", 1, "np.concatenate([y[:, i] for i in range(y.shape[1])], axis=-1)", "y.sum(axis=1)"),
    ("merge along time", 1, "range(y.shape[1])], axis=-1)", "range(y.shape[1])], axis=1)"),
    ("mask of floats", 1, ", dtype=bool)", ")"),
    ("own position only", 0, "<= queries", "== queries"),
    ("square mask", 1, "np.tri(n_queries, n_keys, n_keys - n_queries, dtype=bool)", "np.tri(n_queries, dtype=bool)"),
    ("everything", 0, "np.arange(n_keys)[None, :] <= queries", "np.ones((n_queries, n_keys), bool)"),
    ("heads in front of the batch", 1, "axis=1)", "axis=0)"),
]

RIGHT[9] = (
    """
import numpy as np

def rate(step, d_model, warmup):
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)

def adam(p, g, m, v, step, lr, beta1, beta2, eps):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    m_hat = m / (1 - beta1**step)
    v_hat = v / (1 - beta2**step)
    return p - lr * m_hat / (np.sqrt(v_hat) + eps), m, v
""",
    """
import numpy as np

def rate(step, d_model, warmup):
    if step < warmup:
        factor = step / warmup**1.5
    else:
        factor = 1 / step**0.5
    return factor / d_model**0.5

def adam(p, g, m, v, step, lr, beta1, beta2, eps):
    m = m + (1 - beta1) * (g - m)
    v = v + (1 - beta2) * (g * g - v)
    root = np.sqrt(v / (1 - beta2**step))
    return (p - lr / (1 - beta1**step) * m / (root + eps), m, v)
""",
)
EDITS[9] = [
    ("only p returned", 0, "(np.sqrt(v_hat) + eps), m, v", "(np.sqrt(v_hat) + eps)"),
    (
        "p changed in place",
        0,
        "return p - lr * m_hat / (np.sqrt(v_hat) + eps)",
        "p -= lr * m_hat / (np.sqrt(v_hat) + eps)\n    return p",
    ),
    ("old and new exchanged", 0, "beta1 * m + (1 - beta1) * g", "(1 - beta1) * m + beta1 * g"),
    ("correction of m only", 0, "v / (1 - beta2**step)", "v"),
    ("correction of v only", 1, "lr / (1 - beta1**step) * m", "lr * m"),
    ("correction by beta times step", 0, "1 - beta1**step", "1 - beta1 * step"),
    ("one step late", 0, "1 - beta1**step", "1 - beta1 ** (step + 1)"),
    ("gradient not weighted", 0, "(1 - beta1) * g\n", "g\n"),
    ("square of m", 0, "(1 - beta2) * g**2", "(1 - beta2) * m**2"),
    ("one beta for both corrections", 0, "1 - beta2**step", "1 - beta1**step"),
    ("eps forgotten", 0, " + eps)", ")"),
    ("size not inverted", 0, "d_model**-0.5", "d_model**0.5"),
    ("sum instead of minimum", 0, "min(step**-0.5, step * warmup**-1.5)", "(step**-0.5 + step * warmup**-1.5)"),
    ("warmup not powered", 1, "step / warmup**1.5", "step / warmup"),
    ("moments in place", 0, "m = beta1 * m + (1 - beta1) * g\n", "m *= beta1\n    m += (1 - beta1) * g\n"),
    ("rate forgotten", 1, "lr / (1", "1 / (1"),
]

RIGHT[10] = (
    """
def batches(lengths, budget):
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    result, current = [], []
    for i in order:
        if current and (len(current) + 1) * lengths[i] > budget:
            result.append(current)
            current = []
        current.append(i)
    if current:
        result.append(current)
    return result
""",
    """
import numpy as np

def batches(lengths, budget):
    order = np.argsort(lengths, kind="stable").tolist()
    result = []
    for i in order:
        if result and lengths[i] * (len(result[-1]) + 1) <= budget:
            result[-1].append(i)
        else:
            result.append([i])
    return result
""",
)
EDITS[10] = [
    ("unsorted", 0, "sorted(range(len(lengths)), key=lambda i: lengths[i])", "list(range(len(lengths)))"),
    (
        "first sentence of a batch lost",
        0,
        "current = []\n        current",
        "current = []\n            continue\n        current",
    ),
    ("equal ones reversed", 0, "lengths[i])\n", "(lengths[i], -i))\n"),
    ("empty batch", 0, "    if current:\n        result.append(current)", "    result.append(current)"),
    ("fixed number of rows", 0, "(len(current) + 1) * lengths[i] > budget", "len(current) == budget // max(lengths)"),
    ("ranks instead of indices", 0, "for i in order:", "lengths = sorted(lengths)\n    for i in range(len(lengths)):"),
    (
        "first of equal lengths",
        0,
        "sorted(range(len(lengths)), key=lambda i: lengths[i])",
        "[lengths.index(n) for n in sorted(lengths)]",
    ),
    ("one sentence in each batch", 1, "result and lengths[i] * (len(result[-1]) + 1) <= budget", "False"),
    ("sum of lengths", 1, "lengths[i] * (len(result[-1]) + 1)", "lengths[i] + sum(lengths[j] for j in result[-1])"),
    ("budget in sentences", 1, "lengths[i] * (len(result[-1]) + 1)", "(len(result[-1]) + 1)"),
    ("single batches dropped", 0, "    if current:\n", "    if len(current) > 1:\n"),
]

RIGHT[11] = (
    """
END = 0

def beam_search(next_log_p, beam, max_length, alpha):
    alive, best, best_score = [((), 0.0)], None, -float("inf")
    for n in range(1, max_length + 1):
        grown = []
        for prefix, log_p in alive:
            for token, extra in enumerate(next_log_p(prefix)):
                total = log_p + extra
                if token == END:
                    score = total / ((5 + n) / 6) ** alpha
                    if score > best_score:
                        best, best_score = list(prefix), score
                else:
                    grown.append((prefix + (token,), total))
        alive = sorted(grown, key=lambda pair: -pair[1])[:beam]
    return best, best_score
""",
    """
import heapq

END = 0

def beam_search(next_log_p, beam, max_length, alpha):
    hypotheses, finished = [(0.0, ())], []
    for n in range(1, max_length + 1):
        following = [(p + q, prefix + (t,)) for p, prefix in hypotheses for t, q in enumerate(next_log_p(prefix))]
        penalty = ((5 + n) / 6) ** alpha
        finished += [(p / penalty, prefix[:-1]) for p, prefix in following if prefix[-1] == END]
        hypotheses = heapq.nlargest(beam, [pair for pair in following if pair[1][-1] != END])
    score, tokens = max(finished)
    return list(tokens), score
""",
)
EDITS[11] = [
    (
        "best by log-probability",
        1,
        "score, tokens = max(finished)",
        "score, tokens = max(finished, key=lambda f: f[0] * ((6 + len(f[1])) / 6) ** alpha)",
    ),
    ("multiplied log-probabilities", 0, "log_p + extra", "log_p * extra if prefix else extra"),
    ("end returned", 1, "prefix[:-1]", "prefix"),
    ("one length short", 0, "range(1, max_length + 1)", "range(1, max_length)"),
    ("one length too long", 1, "range(1, max_length + 1)", "range(1, max_length + 2)"),
    ("score times the penalty", 0, "total / ((5 + n) / 6) ** alpha", "total * ((5 + n) / 6) ** alpha"),
    ("six not powered", 0, "((5 + n) / 6) ** alpha", "((5 + n) ** alpha / 6)"),
    ("last token only", 0, "key=lambda pair: -pair[1]", "key=lambda pair: -next_log_p(pair[0][:-1])[pair[0][-1]]"),
    ("sum forgotten", 1, "(p + q, prefix", "(q, prefix"),
    (
        "a beam for each prefix",
        0,
        "        alive = sorted(grown, key=lambda pair: -pair[1])[:beam]",
        """        alive = [
            pair
            for prefix, _ in alive
            for pair in sorted([g for g in grown if g[0][:-1] == prefix], key=lambda g: -g[1])[:beam]
        ]""",
    ),
    ("worst sentence", 1, "max(finished)", "min(finished)"),
    ("probability as score", 1, "list(tokens), score", "list(tokens), 2.718281828459045 ** score"),
]

RIGHT[12] = (
    """
import numpy as np

def log_sum_exp(panels):
    top = total = None
    for panel in panels:
        if top is None:
            top, total = np.full(len(panel), -np.inf), np.zeros(len(panel))
        new = np.maximum(top, panel.max(axis=1))
        safe = np.where(np.isinf(new), 0.0, new)
        total = total * np.exp(top - safe) + np.exp(panel - safe[:, None]).sum(axis=1)
        top = new
    with np.errstate(divide="ignore"):
        return np.where(np.isinf(top), top, top + np.log(total))
""",
    """
import numpy as np

def log_sum_exp(panels):
    result = None
    for panel in panels:
        top = panel.max(axis=1, keepdims=True)
        top = np.where(np.isneginf(top), 0, top)
        with np.errstate(divide="ignore"):
            part = (np.log(np.exp(panel - top).sum(axis=1, keepdims=True)) + top)[:, 0]
        result = part if result is None else np.logaddexp(result, part)
    return result
""",
)
EDITS[12] = [
    (
        "maximum of the first panel",
        0,
        "np.maximum(top, panel.max(axis=1))",
        "panel.max(axis=1) if np.isinf(top).all() else top",
    ),
    ("log forgotten", 0, "top + np.log(total)", "top + total"),
    ("maximum not added", 0, "top + np.log(total)", "np.log(total)"),
    ("last panel only", 1, "part if result is None else np.logaddexp(result, part)", "part"),
    ("largest part", 1, "np.logaddexp(result, part)", "np.maximum(result, part)"),
    ("mean of a panel", 0, "np.exp(panel - safe[:, None]).sum(axis=1)", "np.exp(panel - safe[:, None]).mean(axis=1)"),
    ("parts added", 1, "np.logaddexp(result, part)", "result + part"),
    (
        "first panel twice",
        1,
        "        result = part if result is None else",
        "        result = part if result is None else result\n        result =",
    ),
    ("column of results", 1, "return result", "return result[:, None]"),
    ("one maximum for all rows", 1, "panel.max(axis=1, keepdims=True)", "panel.max() * np.ones((len(panel), 1))"),
    ("factor of the new maximum", 0, "np.exp(top - safe)", "np.exp(safe - top)"),
]
