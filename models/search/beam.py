"""Beam search: the target sentences of greatest score found, each sentence ending as soon as nothing can change."""

from collections.abc import Callable
from typing import Any, NamedTuple

from models.modes import evaluating
from models.search.protocol import Hypothesis, SearchModel, begin, continuations, length_penalty
from npx import host


class Moment(NamedTuple):
    """One step of a search, all of it on the host: n sentences still searched, C candidates of each, the best first.

    Of these the first K, the beam, are kept: those that end in EOS leave, the others are nodes of the tree of prefixes.
    """

    sentences: Any  # (n,)
    parent: Any  # (n, C) the node each goes on from; -1: the root
    token: Any  # (n, C)
    log_probability: Any  # (n, C), of the whole prefix; -inf: no candidate
    node: Any  # (n, K) the nodes that they become; -1: none, it has ended
    penalty: float  # what a log-probability is divided by at this length
    worst: Any  # (n,) the score to beat: the n_best-th of those that have ended; -inf: fewer have
    bound: Any  # (n,) the greatest score that any live one can still reach
    at_limit: Any  # (n,) whether this is the greatest length
    done: Any  # (n,) whether the sentence's search ends here


class _Kept:
    """The `n_best` hypotheses kept of each sentence, apart from the live ones: a table (B, n_best), best first.

    A hypothesis is a node of the tree of all prefixes and the depth of that node; score -inf marks an empty place.
    """

    def __init__(self, n_sentences: int, n_best: int) -> None:
        shape = (n_sentences, n_best)
        self.score, self.log_probability = host.full(shape, -host.inf), host.zeros(shape)
        self.node, self.depth = host.zeros(shape, host.int64), host.zeros(shape, host.int64)
        self.finished = host.zeros(shape, bool)

    def add(self, sentences: Any, some: Any, offered: Any, finished: bool, penalty: float, **new: Any) -> None:
        """Offer hypotheses (n, K), those that are `offered`, to `some` of the `sentences` (n,).

        Finished ones compete by score, which is their log-probability divided by `penalty`; others fill gaps.
        """
        n_best = self.score.shape[1]
        new["score"] = host.where(offered, new["log_probability"] / penalty, -host.inf)
        new["finished"] = finished
        sentences = sentences[some]
        both = {
            name: host.concatenate([getattr(self, name)[sentences], host.broadcast_to(x, offered.shape)[some]], axis=1)
            for name, x in new.items()
        }
        rank = -both["score"] if finished else both["score"] == -host.inf
        order = host.argsort(rank, axis=1, kind="stable")[:, :n_best]  # stable: the earlier one first among equals
        for name, x in both.items():
            getattr(self, name)[sentences] = host.take_along_axis(x, order, axis=1)


def beam_search(
    model: SearchModel,
    src: Any,
    *,
    beam: int = 4,
    alpha: float = 0.6,
    penalty: str = "paper",
    max_extra: int = 50,
    n_best: int = 1,
    early_end: bool = True,
    observe: Callable[[Moment], object] | None = None,
) -> list[list[Hypothesis]]:
    """The `n_best` hypotheses of greatest score found for each sentence, best first (section 6.1).

    score(Y) = log P(Y | X) / length_penalty(|Y|), where |Y| counts EOS. `src` (B, S) are source ids, each row
    tokens, EOS, padding; |Y| is at most the number of source tokens + `max_extra`.

    Each step keeps, of all continuations of a sentence, the `beam` most probable; those that end in EOS leave and are
    ranked by score, the others live on. Among equals the earlier beam wins, then the lower token. A sentence ends
    where no live hypothesis can come among its `n_best` any more (`early_end=False`: at its limit; the result is the
    same). Hypotheses cut off at the limit come last, and only where fewer than `n_best` have finished. A list is
    shorter than `n_best` only where there are no more sentences within the limit. `observe` is told of each step, and
    may raise to end the search. Raises ValueError for a bad argument, and FloatingPointError where the model gives NaN.
    """
    src, limits = begin(model, src, max_extra, beam=beam, alpha=alpha, penalty=penalty, n_best=n_best)
    if not len(src):
        return []
    config = model.config
    kept = _Kept(len(src), n_best)
    parents, symbols, n_nodes = [], [], 0  # the tree of prefixes, one array a step; the root is -1
    active = host.arange(len(src))  # (n,) the sentences still searched
    # Each of them has equally many neighbouring rows, R = n * rows_each, the better before the worse: so a state can
    # share a source among them. A row of log-probability -inf is a place that no live hypothesis takes.
    node, log_p = host.full(len(src), -1), host.zeros(len(src))  # (R,)
    with evaluating(model):
        tokens, state = model.start(src)
        for length in range(1, limits.max() + 1):
            logits = model.step(tokens, state)  # (R, V)
            values, ids = continuations(logits, beam, config, length)
            rows_each, width = len(tokens) // len(active), values.shape[1]

            # The beam best continuations of each sentence, over all its rows.
            grid = (log_p[:, None] + values).reshape(len(active), rows_each * width)
            ranked = host.argsort(-grid, axis=1, kind="stable")
            order = ranked[:, :beam]  # (n, K)
            total = host.take_along_axis(grid, order, axis=1)
            row = order // width + rows_each * host.arange(len(active))[:, None]  # the row each comes from
            token = ids[row, order % width]
            ended = (total > -host.inf) & (token == config.eos_id)
            live = (total > -host.inf) & ~ended

            some, divided = ended.any(axis=1), length_penalty(length, alpha, penalty)
            if some.any():
                kept.add(active, some, ended, True, divided, log_probability=total, node=node[row], depth=length - 1)

            grown = host.full(live.shape, -1)  # the live ones become nodes of the tree
            grown[live] = n_nodes + host.arange(live.sum())
            parents.append(node[row[live]])
            symbols.append(token[live])
            n_nodes += len(symbols[-1])

            # A live hypothesis only loses probability from here. Its score, at a final length between length + 1 and
            # the limit, is at most the greater of those at the two ends, the penalty being monotonic in the length.
            best = host.where(live, total, -host.inf).max(axis=1)  # (n,)
            limit = limits[active]
            at_limit = limit == length
            done = at_limit | (best == -host.inf)
            soonest, latest = (length_penalty(end, alpha, penalty) for end in (length + 1, limit))
            bound = host.maximum(best / soonest, best / latest)
            if early_end:
                done |= kept.score[active, -1] >= bound
            if at_limit.any():
                kept.add(active, at_limit, live, False, divided, log_probability=total, node=grown, depth=length)
            if observe is not None:
                found = host.take_along_axis(grid, ranked, axis=1)
                of = ranked // width + rows_each * host.arange(len(active))[:, None]
                state_of_search = kept.score[active, -1], bound, at_limit, done
                observe(Moment(active, node[of], ids[of, ranked % width], found, grown, divided, *state_of_search))
            if done.all():
                break

            # The places of those that ended repeat a live one, with no probability.
            place = host.where(live, host.arange(live.shape[1]), live.argmax(axis=1)[:, None])[~done]  # (n, K)
            total = host.where(live, total, -host.inf)[~done]
            row, tokens, node = (host.take_along_axis(x[~done], place, axis=1).ravel() for x in (row, token, grown))
            log_p, active = total.ravel(), active[~done]
            if len(row) != len(logits) or (row != host.arange(len(row))).any():
                state.select(row)
    return _hypotheses(kept, host.concatenate(parents), host.concatenate(symbols))


def _hypotheses(kept: _Kept, parent: Any, symbol: Any) -> list[list[Hypothesis]]:
    """Read the kept hypotheses off the tree, all at once from their last tokens back."""
    tokens = host.zeros((*kept.node.shape, kept.depth.max()), host.int64)  # (B, n_best, T)
    node = kept.node.copy()
    for position in reversed(range(tokens.shape[2])):
        deep = (kept.depth > position) & (kept.score > -host.inf)
        tokens[deep, position] = symbol[node[deep]]
        node[deep] = parent[node[deep]]
    return [
        [
            Hypothesis(
                tokens[i, j, : kept.depth[i, j]].tolist(),
                float(kept.score[i, j]),
                float(kept.log_probability[i, j]),
                bool(kept.finished[i, j]),
            )
            for j in range(kept.score.shape[1])
            if kept.score[i, j] > -host.inf
        ]
        for i in range(len(kept.score))
    ]
