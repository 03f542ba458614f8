"""At step 1 the corrected moments are g and g^2, so every parameter moves by lr, whatever the size of its gradient."""

import numpy as np

import npx
from book.exercise import Stage, changed, close_to, draw, text, who_overwrites
from train.learn.optimizer import NoamSchedule


def steps(seed):
    yield from [(1, 4, 10), (10, 4, 10), (40, 4, 10), (9, 512, 4000)]
    random = np.random.default_rng(seed)
    for _ in range(5):
        yield tuple(int(n) for n in random.integers(1, 500, size=3))


def updates(seed):
    one, zero = np.array([1.0]), np.array([0.0])
    yield one, np.array([2.0]), zero, zero, 1, 0.2, 0.9, 0.98, 0.0
    yield one, np.array([2.0]), np.array([0.5]), np.array([3.0]), 2, 0.2, 0.9, 0.98, 0.0
    yield one, np.array([0.01]), zero, zero, 1, 0.2, 0.9, 0.98, 0.01
    for step in (1, 2, 7, 1000):
        p, g, m, v = draw(seed + step, 4, 2)
        yield p, g, m, abs(v), step, 0.2, 0.9, 0.98, 0.001


def right_adam(p, g, m, v, step, lr, beta1, beta2, eps):
    npx.adam.reference(p, g, m, v, npx.adam_coefficients(step, lr, beta1, beta2, eps))
    return p, m, v


def overwriting(module, p, g, m, v, *rest):
    before = [a.copy() for a in (p, g, m, v)]
    module.adam(p, g, m, v, *rest)
    return {"the function changes": changed([*"pgmv"], before, (p, g, m, v))}


def explain_rate(yours, right, step, d_model, warmup):
    rising, falling = step * warmup**-1.5, step**-0.5
    for name, size in (("warmup", warmup), ("d_model", d_model), ("step", step)):
        for shown, power in ((name, 1), (f"the square root of {name}", 0.5)):
            for ratio, words in ((yours / right, "times as large"), (right / yours, "times as small")):
                if 1 < size and abs(ratio - size**power) < 1e-9 * ratio:
                    return f"At this step your rate is {shown} ({ratio:.4g}) {words} as it should be."
    return f"The rising term is {rising:.4g} here, the falling one {falling:.4g}; d_model^-0.5 is {d_model**-0.5:.4g}."


def explain_update(yours, right, p, g, m, v, step, *rest):
    wrong = [name for name, a, b in zip("pmv", yours, right, strict=True) if not close_to(a, b)]
    if wrong == ["p"]:
        for other in range(1, step + 3):
            if other != step and close_to(yours[0], right_adam(p.copy(), g, m.copy(), v.copy(), other, *rest)[0]):
                return f"m and v are right, but p moves as if step were {other}, not {step}. Look at both corrections."
        return "The moments m and v are right; only p is wrong."
    return f"Of the moments, {' and '.join(name for name in wrong if name != 'p')} is wrong, and p depends on it."


STAGES = [
    Stage("the rate is wrong", steps, lambda m, *a: m.rate(*a), lambda s, d, w: NoamSchedule(d, w)(s),
          lambda *a: f"rate{a}", explain=explain_rate),
    Stage("the update (p, m, v) is wrong", updates, lambda m, *a: m.adam(*a), right_adam,
          lambda *a: f"adam({', '.join(map(text, a))})", explain=explain_update),
    Stage("the update is right, but it overwrites its arguments", updates,
          overwriting, lambda *a: {"the function changes": []}, lambda *a: f"adam({', '.join(map(text, a))})",
          explain=who_overwrites),
]  # fmt: skip
NAMES = {
    "mhat": "the corrected m",
    "vhat": "the corrected v",
    "m_0": "m before the update",
    "v_0": "v before the update",
    "p_0": "p before the update",
    "root": "sqrt(1 - beta2^step)",
    "m_i": "an entry of m",
    "v_i": "an entry of v",
    "g_i": "an entry of g",
    "p_i": "an entry of p",
    "move": "the step of p",
    "new_m": "the new m",
    "new_v": "the new v",
    "peak": "the highest rate",
    "denominator": "the root of the corrected v, plus eps",
}
AFTER = """\
The real one (npx/kernels/adam.py, `adam`) does write in place: all parameters of a model are one flat array, and an
update is one pass over it. Both corrections become two numbers that are computed once per step."""
