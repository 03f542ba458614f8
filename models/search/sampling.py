"""Sampling: a text goes on with tokens drawn from the model's probabilities, the same for the same seed."""

from collections.abc import Sequence
from typing import Any

import npx
from models.modes import evaluating
from models.search.protocol import check_whole
from npx import host


def sample(
    model: Any,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    window: int | None = None,
) -> list[list[int]]:
    """`tokens` token ids after each of the prompts (lists of ids, at least one each, of any lengths).

    Each is drawn from softmax(logits / temperature), of which only the `top_k` most probable are kept (0: all), then
    the fewest that together have the probability `top_p` (Holtzman et al., 2020). temperature 0: the most probable.
    Padding, begin and end are never drawn: a text goes on.
    Text i draws by the keys (seed, i): how many tokens are asked for does not change it, nor do the other texts.

    `window`: positions that the model looks back on at most (None: `model.longest`); where they are full, it reads the
    later half of them again and goes on. They are counted for all texts together, from the shortest prompt's end: so
    which ones a text still sees then hangs on the others. ValueError for a bad argument.
    """
    check_sampling(tokens=tokens, temperature=temperature, top_k=top_k, top_p=top_p, window=window)
    if not all(map(len, prompts)):
        raise ValueError("prompts: expected at least one token in each; got none; try beginning with bos_id")
    if not prompts:
        return []
    window = min(filter(None, (window, model.longest)), default=None)
    lengths = host.array([len(prompt) for prompt in prompts])  # (B,)
    text = host.zeros((len(prompts), lengths.max() + tokens), host.int64)
    for row, prompt in zip(text, prompts, strict=True):
        row[: len(prompt)] = prompt
    draws = host.stack([
        npx.to_host(npx.random.uniform(npx.Key(seed, i, 0), (tokens,), host.float64)) for i in range(len(prompts))
    ])  # fmt: skip
    rows, state, held = host.arange(len(prompts)), None, 0
    with evaluating(model):
        for end in range(lengths.min(), text.shape[1]):  # text[:, :end] is known
            if state is None or held == window:
                held = min(end, window or end) if state is None else max(1, held // 2)
                last, state = model.start(text[:, end - held : end])
            else:
                last, held = text[:, end - 1], held + 1
            logits = npx.to_host(model.step(last, state)).astype(host.float64)  # (B, V)
            logits[:, [model.config.pad_id, model.config.bos_id, model.config.eos_id]] = -host.inf
            if not host.isfinite(logits.max(axis=1)).all():
                raise FloatingPointError(f"sample: expected finite logits; got NaN or infinity at position {end}")
            drawn = end - lengths  # (B,) how many each text has so far; below 0: its prompt goes on; more are cut off
            chosen = draw(logits, draws[rows, host.clip(drawn, 0, tokens - 1)], temperature, top_k, top_p)
            text[:, end] = host.where(drawn >= 0, chosen, text[:, end])
    return [row[n : n + tokens].tolist() for row, n in zip(text, lengths, strict=True)]


def draw(logits: npx.Array, uniform: npx.Array, temperature: float, top_k: int, top_p: float) -> npx.Array:
    """The token (B,) in whose share of the sorted probabilities of logits (B, V) `uniform` (B,), in [0, 1), falls."""
    order = host.argsort(-logits, axis=1, kind="stable")  # among equals the lower token first
    if temperature == 0:
        return order[:, 0]
    z = host.take_along_axis(logits, order, axis=1)[:, : top_k or None]
    p = host.exp((z - z[:, :1]) / temperature)
    p /= p.sum(axis=1, keepdims=True)
    p *= host.cumsum(p, axis=1) - p < top_p  # those before it do not suffice
    total = host.cumsum(p, axis=1)
    place = (total <= uniform[:, None] * total[:, -1:]).sum(axis=1)
    return host.take_along_axis(order, place[:, None], axis=1)[:, 0]


def check_sampling(
    *, tokens: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, window: int | None = None
) -> None:
    """Raise ValueError, naming the option, for a sampling that cannot be."""
    for name, value, least in (("tokens", tokens, 1), ("top_k", top_k, 0), ("window", window, 1)):
        if name != "window" or value is not None:
            check_whole(name, value, least)
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature: expected a number from 0; got {temperature}; try 1.0")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p: expected a share above 0, to 1; got {top_p}; try 0.95")
