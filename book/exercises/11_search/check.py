"""Keep two lists: prefixes that go on, compared by probability, and finished sentences, compared by score."""

import itertools
import math

import numpy as np

from book.exercise import Rejected, Stage


def asked(table):
    """The function that a search asks, and the list of what it was asked. Prefixes not in the table end for sure."""
    log = []

    def next_log_p(prefix):
        log.append(tuple(prefix))
        tokens = len(next(iter(table.values())))
        row = table.get(tuple(prefix), [1.0] + [0.0] * (tokens - 1))
        return [math.log(p) if p > 0 else -math.inf for p in row]

    return next_log_p, log


def answer(module, table, beam, longest, alpha):
    next_log_p, log = asked(table)
    found = module.beam_search(next_log_p, beam, longest, alpha)
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], (list, tuple))):
        raise Rejected("expected beam_search to return a tuple (tokens, score)")
    return [int(token) for token in found[0]], float(found[1]), log


def scored(table, tokens, alpha):
    next_log_p, _ = asked(table)
    total = sum(next_log_p(tuple(tokens[:i]))[token] for i, token in enumerate([*tokens, 0]))
    return total / ((5 + len(tokens) + 1) / 6) ** alpha


def best(table, beam, longest, alpha):
    """By trying all of them."""
    tokens = range(1, len(next(iter(table.values()))))
    sentences = [s for n in range(longest) for s in itertools.product(tokens, repeat=n)]
    return max(([list(s), scored(table, s, alpha)] for s in sentences), key=lambda found: found[1])


def by_hand(seed):
    yield {(): [0.5, 0.5], (1,): [0.9, 0.1]}, 2, 1, 0.6
    yield {(): [0.5, 0.5], (1,): [0.9, 0.1]}, 2, 2, 1.0
    yield {(): [0.4, 0.6], (1,): [0.7, 0.3]}, 2, 2, 0.0
    yield {(): [0.5, 0.5], (1,): [0.9, 0.1]}, 2, 2, 3.0
    yield {(): [0.4, 0.6], (1,): [0.1, 0.9], (1, 1): [0.9, 0.1]}, 3, 3, 1.0
    yield {(): [0.1, 0.5, 0.4], (1,): [0.2, 0.4, 0.4]}, 2, 2, 0.6  # the second best beginning wins


def tables(seed, tokens, longest):
    random = np.random.default_rng([seed, tokens, longest])
    table = {}
    for n in range(longest):
        for prefix in itertools.product(range(1, tokens), repeat=n):
            p = random.random(tokens) + 0.02
            p[0] *= 0.5
            table[prefix] = [float(x) for x in p / p.sum()]
    return table


def drawn(seed):
    for tokens, longest, alpha in ((2, 2, 0.6), (3, 2, 1.0), (2, 4, 0.6), (3, 3, 0.6), (3, 4, 1.5)):
        yield tables(seed, tokens, longest), tokens**longest, longest, alpha


def narrow(seed):
    yield {(): [0.45, 0.4, 0.15], (1,): [1.0, 0.0, 0.0]}, 1, 2, 3.0
    yield {(): [0.1, 0.5, 0.4], (1,): [0.6, 0.2, 0.2], (2,): [0.9, 0.05, 0.05]}, 1, 2, 0.6
    for tokens, longest, beam in ((3, 3, 1), (3, 4, 2), (4, 4, 3)):
        yield tables(seed, tokens, longest), beam, longest, 0.6


def laws(module, table, beam, longest, alpha):
    tokens, score, log = answer(module, table, beam, longest, alpha)
    most = max((sum(len(p) == n for p in log) for n in range(longest)), default=0)
    return {"asks at most `beam` prefixes of a length": most <= beam, "score": score}


def right_laws(table, beam, longest, alpha):
    """The beam's own best: prefixes kept by probability."""
    next_log_p, _ = asked(table)
    live, top = [((), 0.0)], -math.inf
    for n in range(1, longest + 1):
        rows = [(prefix, log_p, next_log_p(prefix)) for prefix, log_p in live]
        top = max([top, *((log_p + row[0]) / ((5 + n) / 6) ** alpha for _, log_p, row in rows)])
        grown = [((*prefix, t), log_p + row[t]) for prefix, log_p, row in rows for t in range(1, len(row))]
        live = sorted(grown, key=lambda item: -item[1])[:beam]
    return {"asks at most `beam` prefixes of a length": True, "score": top}


def call(table, beam, longest, alpha):
    rows = {prefix: [round(p, 3) for p in row] for prefix, row in table.items()}
    return f"p = {rows}\nbeam_search(lambda prefix: np.log(p[prefix]), {beam}, {longest}, {alpha})"


STAGES = [
    Stage("a beam as wide as all sentences has to find the best of them", cases,
          lambda m, *a: [*answer(m, *a)[:2]], best, call) for cases in (by_hand, drawn)
] + [Stage("a narrow beam asks for other prefixes than the most probable", narrow, laws, right_laws, call)]  # fmt: skip
AFTER = """\
The real one (models/search/beam.py, `beam_search`) searches many sentences in one batch, and stops for one as soon as
nothing that lives can win any more, whatever its length will be. In it an end takes one of the beam's places."""
