"""Beam search over a batch of sentences; the search for each one stops as soon as its result cannot change."""

from collections.abc import Callable
from typing import Any, NamedTuple

from models.module import evaluation_mode
from models.search.protocol import Hypothesis, SearchModel, length_penalty, prepare, top_continuations
from npx import host


class SearchStep(NamedTuple):
    """One step of a beam search, for observers: n sentences that are still active, C candidates of each, best first.

    The first K candidates (2 K with `full_beam`) compete. Those ending in EOS are finished; the others, at most K, are
    the new nodes of the prefix tree. All arrays are on the host.
    """

    sentences: Any  # (n,)
    parent: Any  # (n, C) node that each candidate extends; -1: the root
    token: Any  # (n, C)
    log_probability: Any  # (n, C) of the complete prefix; -inf: no candidate
    node: Any  # (n, K or 2 K) the new node of each competing candidate; -1: it has ended; -2: the beam was full
    penalty: float  # length penalty at this length
    score_to_beat: Any  # (n,) the n_best-th best finished score; -inf if fewer have finished
    bound: Any  # (n,) the best score that a live hypothesis can still reach
    at_limit: Any  # (n,) whether this is the maximum length
    done: Any  # (n,) whether the search ends here for the sentence


class _BestHypotheses:
    """The `n_best` best hypotheses that are no longer live, for each sentence: arrays (B, n_best), best first.

    A hypothesis is a node of the prefix tree, its depth and the log-probability of its end. Score -inf marks an empty
    entry.
    """

    def __init__(self, n_sentences: int, n_best: int) -> None:
        shape = (n_sentences, n_best)
        self.score, self.log_probability, self.end = host.full(shape, -host.inf), host.zeros(shape), host.zeros(shape)
        self.node, self.depth = host.zeros(shape, host.int64), host.zeros(shape, host.int64)
        self.finished = host.zeros(shape, bool)

    def add(self, sentences: Any, rows: Any, valid: Any, finished: bool, penalty: float, **new: Any) -> None:
        """Add the hypotheses (n, K) that are `valid`, for those of the `sentences` (n,) that the mask `rows` selects.

        Finished hypotheses compete by score, log_probability / penalty; unfinished ones only fill empty entries.
        """
        n_best = self.score.shape[1]
        new["score"] = host.where(valid, new["log_probability"] / penalty, -host.inf)
        new["finished"] = finished
        sentences = sentences[rows]
        merged = {
            name: host.concatenate([getattr(self, name)[sentences], host.broadcast_to(x, valid.shape)[rows]], axis=1)
            for name, x in new.items()
        }
        rank = -merged["score"] if finished else merged["score"] == -host.inf
        order = host.argsort(rank, axis=1, kind="stable")[:, :n_best]  # stable: earlier hypotheses win ties
        for name, x in merged.items():
            getattr(self, name)[sentences] = host.take_along_axis(x, order, axis=1)


def beam_search(
    model: SearchModel,
    src_ids: Any,
    *,
    beam: int = 4,
    alpha: float = 0.6,
    penalty: str = "paper",
    max_extra: int = 50,
    n_best: int = 1,
    early_stopping: bool = True,
    full_beam: bool = False,
    finish_in_beam: bool = False,
    stop_at_beam: bool = False,
    observe: Callable[[SearchStep], object] | None = None,
) -> list[list[Hypothesis]]:
    """Return the `n_best` hypotheses with the highest scores for each sentence, best first (section 6.1).

    score(Y) = log P(Y | X) / length_penalty(|Y|), where |Y| counts EOS.

    Args:
        model: a Transformer, or any SearchModel.
        src_ids: (B, S), each row with tokens, EOS, padding.
        beam: number K of hypotheses kept at each step. Default 4.
        alpha: exponent of the length penalty, from -10 to 10. Default 0.6.
        penalty: kind of length penalty, "paper" (default) or "length".
        max_extra: |Y| is at most the number of source tokens plus `max_extra`. Default 50.
        n_best: number of hypotheses returned, at most `beam`. Default 1.
        early_stopping: stop the search for a sentence as soon as no live hypothesis can enter its `n_best`. Default
            True. With False the search continues to the length limit; the result is the same.
        full_beam: keep `beam` live hypotheses, as tensor2tensor does. Default False (see below).
        finish_in_beam: with `full_beam`, rank only hypotheses that end among the `beam` most probable continuations, as
            fairseq, transformers and CTranslate2 do. Default False.
        stop_at_beam: with `full_beam`, stop the search for a sentence when `beam` hypotheses have finished, as fairseq,
            CTranslate2 and transformers (early_stopping=True) do; a better one may be missed. Default False.
        observe: called with each step; may raise to end the search. Default None.

    Each step keeps the `beam` most probable continuations of a sentence. Continuations that end in EOS are ranked by
    score; the others stay live. With `full_beam`, the 2 `beam` most probable continuations are considered: those that
    end in EOS are ranked, and the `beam` most probable others stay live. Ties go to the better-ranked parent, then to
    the lower token. Hypotheses that are cut off at the limit come last and are returned only if fewer than `n_best`
    have finished. A list is shorter than `n_best` only if there are no more sequences within the limit.

    Raises ValueError for an invalid argument, FloatingPointError for NaN in the logits.
    """
    src_ids, limits = prepare(model, src_ids, max_extra, beam=beam, alpha=alpha, penalty=penalty, n_best=n_best)
    if not len(src_ids):
        return []
    config, n_candidates = model.config, 2 * beam if full_beam else beam
    # Of a row, at most `beam` continuations stay live; with `finish_in_beam`, EOS counts only among the best `beam`.
    per_row = min(n_candidates, beam + 1) if finish_in_beam else n_candidates
    best = _BestHypotheses(len(src_ids), n_best)
    # The prefix tree, one array per step: parents, tokens and their log-probabilities. The root is -1.
    parents, symbols, node_values, n_nodes = [], [], [], 0
    n_finished = host.zeros(len(src_ids), host.int64)
    active = host.arange(len(src_ids))  # (n,) sentences whose search has not ended
    # Each active sentence has the same number of adjacent rows, best first, so a state can share its source among them:
    # R = n * rows_each. A row with log-probability -inf is unused.
    node, log_p = host.full(len(src_ids), -1), host.zeros(len(src_ids))  # (R,)
    with evaluation_mode(model):
        tokens, state = model.start(src_ids)
        for length in range(1, limits.max() + 1):
            logits = model.step(tokens, state)  # (R, V)
            values, ids = top_continuations(logits, per_row, config, length)
            rows_each, width = len(tokens) // len(active), values.shape[1]

            # The best continuations of each sentence, over all its rows.
            grid = (log_p[:, None] + values).reshape(len(active), rows_each * width)
            ranked = host.argsort(-grid, axis=1, kind="stable")
            order = ranked[:, :n_candidates]  # (n, K), or (n, 2 K) with full_beam
            total = host.take_along_axis(grid, order, axis=1)
            row = order // width + rows_each * host.arange(len(active))[:, None]  # row that the continuation extends
            token, value = ids[row, order % width], values[row, order % width]
            ended = (total > -host.inf) & (token == config.eos_id)
            open_ended = (total > -host.inf) & ~ended
            if finish_in_beam:
                ended[:, beam:] = False
            live = open_ended & (open_ended.cumsum(axis=1) <= beam)

            n_finished[active] += ended.sum(axis=1)
            has_ended, divisor = ended.any(axis=1), length_penalty(length, alpha, penalty)
            if has_ended.any():
                finished = {"log_probability": total, "end": value, "node": node[row], "depth": length - 1}
                best.add(active, has_ended, ended, True, divisor, **finished)

            new_node = host.where(open_ended, -2, -1)
            new_node[live] = n_nodes + host.arange(live.sum())
            parents.append(node[row[live]])
            symbols.append(token[live])
            node_values.append(value[live])
            n_nodes += len(symbols[-1])

            # The log-probability of a live hypothesis can only fall. The penalty is monotonic in the length, so its
            # score at any later length, up to the limit, is at most the greater of the scores at these two lengths.
            top = host.where(live, total, -host.inf).max(axis=1)  # (n,)
            limit = limits[active]
            at_limit = limit == length
            done = at_limit | (top == -host.inf)
            next_penalty, last_penalty = (length_penalty(end, alpha, penalty) for end in (length + 1, limit))
            bound = host.maximum(top / next_penalty, top / last_penalty)
            if stop_at_beam:
                done |= n_finished[active] >= beam
            if early_stopping:
                done |= best.score[active, -1] >= bound
            if at_limit.any():
                unfinished = {"log_probability": total, "end": 0.0, "node": new_node, "depth": length}
                best.add(active, at_limit, live, False, divisor, **unfinished)
            if observe is not None:
                all_rows = ranked // width + rows_each * host.arange(len(active))[:, None]
                all_totals = host.take_along_axis(grid, ranked, axis=1)
                candidates = node[all_rows], ids[all_rows, ranked % width], all_totals
                outlook = best.score[active, -1], bound, at_limit, done
                observe(SearchStep(active, *candidates, new_node, divisor, *outlook))
            if done.all():
                break

            if full_beam:  # the live hypotheses first, in only as many columns as the beam has
                columns = host.argsort(~live, axis=1, kind="stable")[:, :beam]
                of_beam = [host.take_along_axis(x, columns, axis=1) for x in (live, total, row, token, new_node)]
                live, total, row, token, new_node = of_beam
            # Rows of ended hypotheses become copies of a live one, with log-probability -inf.
            kept = _compacted_places(done)
            source = host.where(live, host.arange(live.shape[1]), live.argmax(axis=1)[:, None])[kept]  # (n, K)
            total = host.where(live, total, -host.inf)[kept]
            row, tokens, node = (host.take_along_axis(x[kept], source, axis=1).ravel() for x in (row, token, new_node))
            log_p, active = total.ravel(), active[kept]
            if len(row) != len(logits) or (row != host.arange(len(row))).any():
                state.select(row)
    return _read_hypotheses(best, *map(host.concatenate, (parents, symbols, node_values)))


def _compacted_places(done: Any) -> Any:
    """Return the indices of the unfinished sentences; the last ones take the places of the finished ones.

    All others keep their places, so the states of their rows need not be copied.
    """
    (remaining,) = host.nonzero(~done)
    n = len(remaining)
    places = host.arange(n)
    places[done[:n]] = remaining[remaining >= n]
    return places


def _read_hypotheses(best: _BestHypotheses, parent: Any, symbol: Any, value: Any) -> list[list[Hypothesis]]:
    """Read the tokens of the best hypotheses, and their log-probabilities, from the prefix tree.

    Tokens are read from the last to the first, for all hypotheses at once.
    """
    tokens = host.zeros((*best.node.shape, best.depth.max()), host.int64)  # (B, n_best, T)
    values = host.zeros(tokens.shape)
    node = best.node.copy()
    for position in reversed(range(tokens.shape[2])):
        has_token = (best.depth > position) & (best.score > -host.inf)
        tokens[has_token, position], values[has_token, position] = symbol[node[has_token]], value[node[has_token]]
        node[has_token] = parent[node[has_token]]

    def hypothesis(i: int, j: int) -> Hypothesis:
        depth, finished = best.depth[i, j], bool(best.finished[i, j])
        terms = values[i, j, :depth].tolist() + [float(best.end[i, j])] * finished
        score, log_probability = float(best.score[i, j]), float(best.log_probability[i, j])
        return Hypothesis(tokens[i, j, :depth].tolist(), score, log_probability, finished, terms)

    n_sentences, n_best = best.score.shape
    return [[hypothesis(i, j) for j in range(n_best) if best.score[i, j] > -host.inf] for i in range(n_sentences)]
