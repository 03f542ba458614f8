"""Keep two lists: unfinished prefixes, compared by probability, and finished sentences, compared by score."""

import itertools
import math

import numpy as np

from book.exercise import Rejected, Stage


def model(table):
    """Return a function next_log_p that looks up probabilities in `table`, and a list in which it records its calls.

    Prefixes that the table lacks are followed by END.
    """
    log = []

    def next_log_p(prefix):
        log.append(tuple(prefix))
        tokens = len(next(iter(table.values())))
        row = table.get(tuple(prefix), [1.0] + [0.0] * (tokens - 1))
        return [math.log(p) if p > 0 else -math.inf for p in row]

    return next_log_p, log


def answer(module, table, beam, max_length, alpha):
    next_log_p, log = model(table)
    result = module.beam_search(next_log_p, beam, max_length, alpha)
    if isinstance(result, tuple) and len(result) == 2 and result[0] is None:
        raise Rejected(
            f"expected a tuple (tokens, score); got {result}. Scores are at most 0. Does your best score start at 0?"
        )
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], (list, tuple))):
        raise Rejected("expected beam_search to return a tuple (tokens, score)")
    return [int(token) for token in result[0]], float(result[1]), log


def with_larger_numbers(module, table, *args):
    """Return the result, and the result for a model whose log-probabilities are above 0."""
    results = []
    for factor in (1, 10):
        try:
            results += answer(module, {prefix: [factor * p for p in row] for prefix, row in table.items()}, *args)[:2]
        except (TypeError, ValueError) as error:
            results += [None, str(error)]
    return results


def scored(table, tokens, alpha):
    next_log_p, _ = model(table)
    total = sum(next_log_p(tuple(tokens[:i]))[token] for i, token in enumerate([*tokens, 0]))
    return total / ((5 + len(tokens) + 1) / 6) ** alpha


def best(table, beam, max_length, alpha):
    """Return the best of all sentences, by exhaustive search."""
    tokens = range(1, len(next(iter(table.values()))))
    sentences = [s for n in range(max_length) for s in itertools.product(tokens, repeat=n)]
    return max(([list(s), scored(table, s, alpha)] for s in sentences), key=lambda item: item[1])


def by_hand(seed):
    yield {(): [0.5, 0.5], (1,): [0.9, 0.1]}, 2, 1, 0.6
    yield {(): [0.5, 0.5], (1,): [0.9, 0.1]}, 2, 2, 1.0
    yield {(): [0.4, 0.6], (1,): [0.7, 0.3]}, 2, 2, 0.0
    yield {(): [0.5, 0.5], (1,): [0.9, 0.1]}, 2, 2, 3.0
    yield {(): [0.4, 0.6], (1,): [0.1, 0.9], (1, 1): [0.9, 0.1]}, 3, 3, 1.0
    yield {(): [0.1, 0.5, 0.4], (1,): [0.2, 0.4, 0.4]}, 2, 2, 0.6  # the second-best prefix wins
    yield {(): [0.6, 0.4], (1,): [0.1, 0.9], (1, 1): [0.9, 0.1]}, 3, 3, 3.0  # the longest sentence wins
    yield {(): [0.4, 0.6], (1,): [0.6, 0.4]}, 2, 2, 3.0  # the better score has the lower probability
    yield {(): [0.1, 0.5, 0.4], (1,): [0.1, 0.8, 0.1], (1, 1): [0.9, 0.05, 0.05]}, 3, 3, 0.6


def tables(seed, tokens, max_length, end=0.5):
    random = np.random.default_rng([seed, tokens, max_length])
    table = {}
    for n in range(max_length):
        for prefix in itertools.product(range(1, tokens), repeat=n):
            p = random.random(tokens) + 0.02
            p[0] *= end
            table[prefix] = [float(x) for x in p / p.sum()]
    return table


def drawn(seed):
    for tokens, max_length, alpha in ((2, 2, 0.6), (3, 2, 1.0), (2, 4, 0.6), (3, 3, 0.6), (3, 4, 1.5)):
        yield tables(seed, tokens, max_length), tokens**max_length, max_length, alpha
    for tokens, max_length in ((3, 4), (4, 3)):  # rare ENDs: the best sentence is often a long one
        yield tables(seed, tokens, max_length, end=0.2), tokens**max_length, max_length, 1.5


def narrow(seed):
    yield {(): [0.45, 0.4, 0.15], (1,): [1.0, 0.0, 0.0]}, 1, 2, 3.0
    yield {(): [0.1, 0.5, 0.4], (1,): [0.6, 0.2, 0.2], (2,): [0.9, 0.05, 0.05]}, 1, 2, 0.6
    yield {(): [0.1, 0.4, 0.5], (1,): [0.5, 0.3, 0.2], (2,): [0.9, 0.05, 0.05]}, 1, 2, 0.6
    yield {(): [0.1, 0.5, 0.4], (1,): [0.1, 0.6, 0.3]}, 1, 2, 0.6  # the best sentence is the least probable extension
    second = {(1, 1): [0.2, 0.4, 0.4], (1, 2): [1.0, 0.0, 0.0], (2, 1): [0.3, 0.4, 0.3]}
    yield {(): [0.1, 0.6, 0.3], (1,): [0.1, 0.5, 0.4], (2,): [0.1, 0.75, 0.15], **second}, 2, 3, 0.6
    for tokens, max_length, beam in ((3, 3, 1), (3, 4, 2), (4, 4, 3)):
        yield tables(seed, tokens, max_length), beam, max_length, 0.6
    for tokens, max_length, beam in ((3, 5, 2), (4, 5, 2), (4, 4, 3)):
        yield tables(seed, tokens, max_length, end=0.2), beam, max_length, 1.5


class Outcome(dict):
    """A result, with the prefixes that the search extended; `explain` uses these."""

    extended = ()


def score_within_beam(module, table, beam, max_length, alpha):
    tokens, score, log = answer(module, table, beam, max_length, alpha)
    widest = max((sum(len(p) == n for p in log) for n in range(max_length)), default=0)
    result = Outcome({"prefixes of one length": "at most `beam`" if widest <= beam else str(widest), "score": score})
    result.extended = log
    return result


def score_or_none(module, *case):
    """Return the result, or None where no sentence finishes, which an answer may express in several ways."""
    try:
        result = score_within_beam(module, *case)
    except (IndexError, Rejected, TypeError, ValueError):
        return None
    return result if result["score"] > -math.inf else None


def right_score_within_beam(table, beam, max_length, alpha):
    """Return the best score that a beam of the most probable prefixes reaches."""
    next_log_p, _ = model(table)
    live, top, extended_prefixes = [((), 0.0)], -math.inf, []
    for n in range(1, max_length + 1):
        rows = [(prefix, log_p, next_log_p(prefix)) for prefix, log_p in live]
        extended_prefixes += [prefix for prefix, _ in live]
        top = max([top, *((log_p + row[0]) / ((5 + n) / 6) ** alpha for _, log_p, row in rows)])
        extended = [((*prefix, t), log_p + row[t]) for prefix, log_p, row in rows for t in range(1, len(row))]
        live = sorted(extended, key=lambda item: -item[1])[:beam]
    result = Outcome({"prefixes of one length": "at most `beam`", "score": top})
    result.extended = extended_prefixes
    return result


def call(table, beam, max_length, alpha):
    rows = {prefix: [round(p, 3) for p in row] for prefix, row in table.items()}
    return f"p = {rows}\nbeam_search(lambda prefix: np.log(p[prefix]), {beam}, {max_length}, {alpha})"


def explain(yours, right, table, beam, max_length, alpha):
    """Say whether the score or the choice of the sentence is wrong."""
    tokens, score = yours
    if any(token == 0 for token in tokens):
        return "The tokens contain END, which is 0. Return the words only."
    if len(tokens) >= max_length:
        return f"{tokens} and END are {len(tokens) + 1} tokens. At most {max_length} are allowed."
    log_p = [model(table)[0](tuple(tokens[:i]))[token] for i, token in enumerate([*tokens, 0])]
    for name, number in {
        "its log-probability: divide by the penalty": sum(log_p),
        "its probability: add logarithms": math.prod(map(math.exp, log_p)),
        "the sum of its probabilities: add their logarithms": sum(map(math.exp, log_p)),
        "the mean of its log-probabilities: divide the sum by the penalty": sum(log_p) / len(log_p),
    }.items():
        if abs(score - number) < 1e-9 and abs(scored(table, tokens, alpha) - number) > 1e-9:
            return f"Your score of {tokens} is {name}."
    if abs(score - scored(table, tokens, alpha)) > 1e-9:
        return f"The score of {tokens} is {scored(table, tokens, alpha):.6g}. Yours is different."
    return f"The score of {tokens} is right, but {right[0]} has a better one."


def explain_beam(yours, right, *_):
    if yours["prefixes of one length"] != right["prefixes of one length"]:
        return "next_log_p is called for too many prefixes of one length. Sort the extensions, and keep `beam` of them."
    for prefix in right.extended:
        n = len(prefix)
        number = sum(len(p) == n for p in yours.extended)
        if prefix not in yours.extended and number < sum(len(p) == n for p in right.extended):
            several = f"{number} unfinished prefix{'es' * (number != 1)} of length {n}"
            return (
                f"Your beam extends {several}, but not {prefix}. Does something else take its place, or end the search?"
            )
        if prefix not in yours.extended:
            other = next(p for p in yours.extended if len(p) == n and p not in right.extended)
            return f"Your beam extends {other}, but not {prefix}, which is more probable."
    return "The beam extends the right prefixes. Look at which sentence you return, and at its score."


STAGES = [
    Stage("a beam wide enough for all sentences must find the best one", cases,
          lambda m, *a: [*answer(m, *a)[:2]], best, call, explain=explain,
          compared=with_larger_numbers) for cases in (by_hand, drawn)
] + [
    Stage("a narrow beam must extend the most probable prefixes", narrow, score_within_beam, right_score_within_beam,
          call, explain=explain_beam, compared=score_or_none),
]  # fmt: skip
NAMES = {
    "live": "the beam",
    "extended": "the extensions of the beam",
    "finished": "the finished sentences",
    "n": "the length with the new token",
    "log_p": "the log-probability of a prefix",
    "token_log_p": "that of the new token",
    "length": "the length without the new token",
    "row": "the log-probabilities of the next token",
    "candidates": "the extensions of the beam",
    "best": "the best sentence so far",
    "grid": "the log-probabilities of all extensions",
    "totals": "those of the prefixes",
    "ended": "the finished sentences, or the score of one",
    "order": "the extensions, the most probable first",
    "total": "the log-probability of an extension",
}
AFTER = """\
The real one (models/search/beam.py, `beam_search`) searches many sentences in one batch, and stops for a sentence as
soon as no unfinished hypothesis can win any more, whatever its final length. There, a finished hypothesis does take a
place in the beam."""
