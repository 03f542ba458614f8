"""Sampling: random texts and outputs from the model's distribution, reproducible with a seed.

`sample` continues texts with a language model; `sample_outputs` samples outputs for sources.
"""

from collections.abc import Sequence
from typing import Any

import npx
from models.config import TransformerConfig
from models.module import evaluation_mode
from models.search.protocol import Hypothesis, SearchModel, check_integer, excluded_ids, prepare_search
from models.search.stepwise import decode_stepwise
from npx import host  # NumPy, for arrays that stay on the CPU


def sample(
    model: Any,
    prompts: Sequence[Sequence[int]],
    n_tokens: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    window: int | None = None,
) -> list[list[int]]:
    """Return `n_tokens` new token ids for each prompt.

    Args:
        model: a LanguageModel.
        prompts: lists of ids, each with at least one, of any lengths.
        n_tokens: number of ids to generate for each prompt.
        temperature: divides the logits; 0 always takes the most probable token. Default 1.
        top_k: sample from the k most probable tokens; 0 (default) from all.
        top_p: sample from the fewest tokens whose probabilities sum to at least `top_p` (Holtzman et al., 2020), after
            `top_k`. Default 1.
        seed: text i uses the random keys (seed, i), independently of the other texts and of `n_tokens`. Default 0.
        window: the maximum number of positions that the model sees. Default: `model.max_length`. When the window is
            full, the model rereads only the later half of the window and continues. All texts advance together from the
            end of the shortest prompt, so the part of a text that the model rereads depends on the other prompts.

    Padding, BOS, EOS and `config.suppressed_ids` are never sampled. Raises ValueError for an invalid argument,
    FloatingPointError for NaN.
    """
    check_sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    check_integer("n_tokens", n_tokens, 1)
    if window is not None:
        check_integer("window", window, 1)
    if not all(map(len, prompts)):
        raise ValueError("prompts: expected at least one token each; got an empty prompt; try starting with bos_id")
    if not prompts:
        return []
    window = min(filter(None, (window, model.max_length)), default=None)
    lengths = host.array([len(prompt) for prompt in prompts])  # (B,)
    texts = host.zeros((len(prompts), lengths.max() + n_tokens), host.int64)
    for row, prompt in zip(texts, prompts, strict=True):
        row[: len(prompt)] = prompt
    uniforms = host.stack([
        npx.to_host(npx.random.uniform(npx.Key(seed, i, 0), (n_tokens,), host.float64)) for i in range(len(prompts))
    ])  # fmt: skip
    rows = host.arange(len(prompts))
    state = None
    n_seen = 0  # positions in the state, the last token included
    with evaluation_mode(model):
        for end in range(lengths.min(), texts.shape[1]):  # texts[:, :end] is known
            if state is None or n_seen == window:
                n_seen = min(end, window or end) if state is None else max(1, n_seen // 2)
                last, state = model.start_decoding(texts[:, end - n_seen : end])
            else:
                last = texts[:, end - 1]
                n_seen += 1
            logits = npx.to_host(model.step(last, state)).astype(host.float64)  # (B, V)
            logits[:, unsampled_ids(model.config)] = -host.inf
            if not host.isfinite(logits.max(axis=1)).all():
                raise FloatingPointError(f"sample: expected finite logits; got NaN or infinity at position {end}")
            n_generated = end - lengths  # (B,) negative within the prompt; tokens beyond `n_tokens` are cut off later
            uniform = uniforms[rows, host.clip(n_generated, 0, n_tokens - 1)]
            chosen = draw_tokens(logits, uniform, temperature, top_k, top_p)
            texts[:, end] = host.where(n_generated >= 0, chosen, texts[:, end])
    return [row[n : n + n_tokens].tolist() for row, n in zip(texts, lengths, strict=True)]


def sample_outputs(
    model: SearchModel,
    src_ids: Any,
    samples: int = 1,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    source_numbers: Sequence[int] | None = None,
    max_extra_tokens: int = 50,
) -> list[list[Hypothesis]]:
    """Return `samples` independent random outputs of each source, in the order in which they are sampled.

    Args:
        model: a Transformer, or any SearchModel.
        src_ids: (B, S), each row with tokens, EOS, padding.
        samples: number of outputs for each source. Default 1.
        temperature, top_k, top_p: as for `sample`.
        seed: sample j of the source with the number i uses the random keys (seed, i, j). Default 0.
        source_numbers: a nonnegative number i for each of the B sources. A source with the same number gets the same
            samples in any batch. Default: 0 to B - 1.
        max_extra_tokens: as for `greedy_search`.

    The log-probabilities are the model's own, independent of temperature, top_k and top_p. Padding, BOS and
    `config.suppressed_ids` are never sampled. Raises ValueError for an invalid argument and FloatingPointError for NaN
    in the logits.
    """
    check_sampling(samples=samples, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    src_ids, limits = prepare_search(model, src_ids, max_extra_tokens)
    if not len(src_ids):
        return []
    uniforms = host.stack([
        npx.to_host(npx.random.uniform(npx.Key(seed, i, j), (limits.max(),), host.float64))
        for i in (range(len(src_ids)) if source_numbers is None else source_numbers) for j in range(samples)
    ])  # fmt: skip

    def choose(logits: npx.Array, rows: npx.Array, position: int) -> tuple[npx.Array, npx.Array]:
        z = npx.to_host(logits).astype(host.float64)  # (R, V)
        z -= z.max(axis=1, keepdims=True)
        log_total = host.log(host.exp(z).sum(axis=1))
        z[:, excluded_ids(model.config)] = -host.inf
        if not host.isfinite(z.max(axis=1)).all():
            raise FloatingPointError(
                f"sample: expected finite logits; got NaN or infinity at output position {position}"
            )
        tokens = draw_tokens(z, uniforms[rows, position - 1], temperature, top_k, top_p)
        return tokens, z[host.arange(len(z)), tokens] - log_total

    hypotheses = decode_stepwise(model, src_ids, limits, choose, samples)
    return [hypotheses[start : start + samples] for start in range(0, len(hypotheses), samples)]


def unsampled_ids(config: TransformerConfig) -> list[int]:
    """Return the ids that `sample` never chooses."""
    return [*excluded_ids(config), config.eos_id]


def draw_tokens(logits: npx.Array, uniform: npx.Array, temperature: float, top_k: int, top_p: float) -> npx.Array:
    """Sample tokens (B,) from logits (B, V) by inverting the CDF of the sorted probabilities at `uniform` (B,)."""
    order, p = sampling_probabilities(logits, temperature, top_k, top_p)
    cdf = host.cumsum(p, axis=1)
    index = (cdf <= uniform[:, None] * cdf[:, -1:]).sum(axis=1)
    return host.take_along_axis(order, index[:, None], axis=1)[:, 0]


def sampling_probabilities(
    logits: npx.Array, temperature: float, top_k: int, top_p: float
) -> tuple[npx.Array, npx.Array]:
    """Return the tokens (B, V), the most probable first, and the unnormalized probabilities (B, K) of the first K.

    K is 1 if the temperature is 0, otherwise `top_k`, or V for top_k = 0. Tokens that `top_p` excludes have the
    probability 0. Among ties, the lower token comes first.
    """
    order = host.argsort(-logits, axis=1, kind="stable")
    if temperature == 0:
        return order, host.ones((len(logits), 1))
    z = host.take_along_axis(logits, order, axis=1)[:, : top_k or None]
    p = host.exp((z - z[:, :1]) / temperature)
    p /= p.sum(axis=1, keepdims=True)
    p *= host.cumsum(p, axis=1) - p < top_p  # keep a token if the sum of all more probable ones is below top_p
    return order, p


def check_sampling(
    *, samples: int = 1, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0
) -> None:
    """Raise ValueError, naming the option, if an option is invalid."""
    for name, value, minimum in (("samples", samples, 1), ("top_k", top_k, 0), ("seed", seed, 0)):
        check_integer(name, value, minimum)
    if seed >= 2**64:
        raise ValueError(f"seed: expected a whole number below 2**64; got {seed}")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature: expected a nonnegative number; got {temperature}; try 1.0")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p: expected a probability above 0 and at most 1; got {top_p}; try 0.95")
