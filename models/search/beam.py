"""Beam search over a batch of sentences; for each sentence, it stops as soon as the result cannot change."""

from collections.abc import Callable
from typing import Any, NamedTuple

from models.module import evaluation_mode
from models.search.protocol import Hypothesis, SearchModel, prepare_search, score_divisor, top_continuations
from npx import Array, host  # NumPy, for arrays that stay on the CPU

ROOT = -1  # in `SearchStep.parent`: the node of the empty prefix
ENDED, BEAM_FULL = -1, -2  # in `SearchStep.node`, which never contains ROOT: candidates that do not stay live


class SearchStep(NamedTuple):
    """One step of a beam search, for observers: C candidates, best first, for each of the n active sentences.

    The first K candidates (2 K unless `candidate_rule` is "plain") compete: those ending in EOS are finished, and at
    most K others become new nodes of the prefix tree. All arrays are on the host.
    """

    sentences: Array  # (n,)
    parent: Array  # (n, C) node that each candidate extends, or ROOT
    token: Array  # (n, C)
    log_probability: Array  # (n, C) of the complete prefix; -inf: no candidate
    node: Array  # (n, K or 2 K) the new node of each competing candidate, or ENDED, or BEAM_FULL
    score_divisor: float  # the divisor of the score at this length
    score_to_beat: Array  # (n,) the n_best-th best finished score; -inf if fewer have finished
    bound: Array  # (n,) the best score that a live hypothesis can still reach
    at_limit: Array  # (n,) whether this is the maximum length
    done: Array  # (n,) whether the search ends here for the sentence


class _PrefixTree:
    """The prefixes of all hypotheses. Each node is a token with its log-probability and its parent."""

    def __init__(self) -> None:
        self.parents: list[Array] = []  # one array per step
        self.tokens: list[Array] = []
        self.log_probabilities: list[Array] = []
        self.n_nodes = 0

    def add(self, parents: Array, tokens: Array, log_probabilities: Array) -> Array:
        """Add one node for each of the tokens (m,) and return the numbers of the nodes."""
        nodes = self.n_nodes + host.arange(len(tokens))
        self.parents.append(parents)
        self.tokens.append(tokens)
        self.log_probabilities.append(log_probabilities)
        self.n_nodes += len(tokens)
        return nodes


class _BestHypotheses:
    """The `n_best` best hypotheses that are no longer live, for each sentence: arrays (B, n_best), best first.

    A hypothesis is a node of the prefix tree, its depth and the log-probability of its EOS. Score -inf marks an
    empty entry.
    """

    def __init__(self, n_sentences: int, n_best: int) -> None:
        shape = (n_sentences, n_best)
        self.score = host.full(shape, -host.inf)
        self.log_probability = host.zeros(shape)
        self.eos_log_probability = host.zeros(shape)
        self.node = host.zeros(shape, host.int64)
        self.depth = host.zeros(shape, host.int64)
        self.finished = host.zeros(shape, bool)

    def add(
        self,
        sentences: Array,
        selected: Array,
        valid: Array,
        finished: bool,
        log_p: Array,
        score_divisor: float,
        **new: Any,
    ) -> None:
        """Add hypotheses (n, C) to the sentences with the numbers `sentences` (n,).

        Finished hypotheses compete by score, log_p / score_divisor; unfinished ones only fill empty entries.

        Args:
            selected: a mask (n,) of the sentences to which hypotheses are added.
            valid: a mask (n, C) of the hypotheses to add.
            log_p: log-probabilities (n, C) of the hypotheses.
            new: `eos_log_probability`, `node` and `depth` of the hypotheses, each (n, C) or one value for all.
        """
        n_best = self.score.shape[1]
        score = host.where(valid, log_p / score_divisor, -host.inf)
        new |= {"score": score, "log_probability": log_p, "finished": finished}
        sentences = sentences[selected]
        merged = {
            name: host.concatenate(
                [getattr(self, name)[sentences], host.broadcast_to(x, valid.shape)[selected]], axis=1
            )
            for name, x in new.items()
        }
        sort_key = -merged["score"] if finished else merged["score"] == -host.inf
        order = host.argsort(sort_key, axis=1, kind="stable")[:, :n_best]  # stable: earlier hypotheses win ties
        for name, x in merged.items():
            getattr(self, name)[sentences] = host.take_along_axis(x, order, axis=1)


class _Candidates(NamedTuple):
    """Continuations of the live hypotheses of n sentences by one token: arrays (n, C), best first."""

    row: Array  # row of the hypothesis that is continued
    token: Array
    token_log_probability: Array
    log_probability: Array  # sum over the prefix, with this token; -inf: no candidate


class _Continuations:
    """The most probable continuations of the rows of n sentences, ranked over all rows of a sentence.

    Args:
        log_p: log-probabilities (R,) of the rows.
        log_probs, ids: log-probabilities and ids (R, width) of the most probable next tokens of each row.
    """

    def __init__(self, n_sentences: int, log_p: Array, log_probs: Array, ids: Array) -> None:
        self.log_probs, self.ids = log_probs, ids
        self.width = log_probs.shape[1]
        self.rows_per_source = len(log_probs) // n_sentences
        self.totals = (log_p[:, None] + log_probs).reshape(n_sentences, self.rows_per_source * self.width)
        self.ranking = host.argsort(-self.totals, axis=1, kind="stable")

    def best(self, count: int | None = None) -> _Candidates:
        """Return the `count` best continuations of each sentence, by default all."""
        order = self.ranking[:, :count]
        row = order // self.width + self.rows_per_source * host.arange(len(order))[:, None]
        column = order % self.width
        total = host.take_along_axis(self.totals, order, axis=1)
        return _Candidates(row, self.ids[row, column], self.log_probs[row, column], total)


def beam_search(
    model: SearchModel,
    src_ids: Any,
    *,
    beam_size: int = 4,
    length_penalty: float = 0.6,
    length_penalty_type: str = "paper",
    max_extra_tokens: int = 50,
    n_best: int = 1,
    candidate_rule: str = "plain",
    stop_when_decided: bool = True,
    observe: Callable[[SearchStep], object] | None = None,
) -> list[list[Hypothesis]]:
    """Return the `n_best` hypotheses with the highest scores for each sentence, best first (section 6.1).

    score(Y) = log P(Y | X) / score_divisor(|Y|), where |Y| counts EOS.

    Args:
        model: a Transformer, or any SearchModel.
        src_ids: (B, S), each row with tokens, EOS, padding.
        beam_size: number K of hypotheses kept at each step. Default 4.
        length_penalty: exponent of the length penalty (the paper's alpha), from -10 to 10. Default 0.6.
        length_penalty_type: formula of the length penalty, "paper" (default) or "length".
        max_extra_tokens: |Y| is at most the number of source tokens plus `max_extra_tokens`. Default 50.
        n_best: number of hypotheses returned, at most `beam_size`. Default 1.
        candidate_rule: which continuations finish and which stay live; see below. Default "plain".
        stop_when_decided: stop the search for a sentence as soon as no live hypothesis can enter its `n_best`. Default
            True. With False the search continues to the length limit; the result is the same.
        observe: called with each step; may raise to end the search. Default None.

    A continuation that ends in EOS finishes, and is ranked by its score. The rules differ in what they do at each step:

    - "plain": Of the K most probable continuations, those with EOS finish, and the others stay live.
    - "tensor2tensor": Of the 2 K most probable continuations, those with EOS finish, and the K most probable others
      stay live.
    - "transformers", with its early_stopping="never", and Marian: the same, but a continuation finishes only if it is
      among the K most probable ones.
    - "fairseq", CTranslate2, and transformers with early_stopping=True: the same as "transformers", but the search for
      a sentence stops when K hypotheses have finished. It may miss a better one. Of those that finish in the last
      step, fairseq ranks only as many as complete the K; this search, like transformers, ranks all.

    Ties go to the better-ranked parent, then to the lower token. Hypotheses that are cut off at the limit come last and
    are returned only if fewer than `n_best` have finished. A list is shorter than `n_best` only if there are no more
    sequences within the limit.

    Raises ValueError for an invalid argument, FloatingPointError for NaN in the logits.
    """
    src_ids, limits = prepare_search(
        model,
        src_ids,
        max_extra_tokens,
        beam_size=beam_size,
        length_penalty=length_penalty,
        length_penalty_type=length_penalty_type,
        n_best=n_best,
        candidate_rule=candidate_rule,
    )
    if not len(src_ids):
        return []
    config = model.config
    refills_beam = candidate_rule != "plain"
    eos_only_in_beam = candidate_rule in ("transformers", "fairseq")
    n_candidates = 2 * beam_size if refills_beam else beam_size
    # If EOS counts only among the K best candidates, K + 1 continuations per row suffice: EOS, and at most
    # K others that stay live.
    per_row = min(n_candidates, beam_size + 1) if eos_only_in_beam else n_candidates
    best = _BestHypotheses(len(src_ids), n_best)
    tree = _PrefixTree()
    n_finished = host.zeros(len(src_ids), host.int64)
    active = host.arange(len(src_ids))  # (n,) sentences whose search has not ended
    # All active sentences have the same number of adjacent rows, best first, so that the rows of a sentence can share
    # its encoded source: R = n * rows_per_source. A row with log-probability -inf is unused.
    node = host.full(len(src_ids), ROOT)  # (R,)
    log_p = host.zeros(len(src_ids))  # (R,)
    with evaluation_mode(model):
        tokens, state = model.start_decoding(src_ids)
        for length in range(1, limits.max() + 1):
            logits = model.step(tokens, state)  # (R, V)
            continuations = _Continuations(len(active), log_p, *top_continuations(logits, per_row, config, length))
            candidates = continuations.best(n_candidates)
            ended, live, new_node = _decide(candidates, config.eos_id, beam_size, eos_only_in_beam)
            new_node[live] = tree.add(
                node[candidates.row[live]], candidates.token[live], candidates.token_log_probability[live]
            )

            divisor = score_divisor(length, length_penalty, length_penalty_type)
            n_finished[active] += ended.sum(axis=1)
            any_ended: Any = ended.any(axis=1)  # (n,)
            if any_ended.any():
                finished_fields = {
                    "eos_log_probability": candidates.token_log_probability,
                    "node": node[candidates.row],
                    "depth": length - 1,
                }
                best.add(active, any_ended, ended, True, candidates.log_probability, divisor, **finished_fields)

            limit = limits[active]
            at_limit = limit == length
            top = host.where(live, candidates.log_probability, -host.inf).max(axis=1)  # (n,)
            bound = _best_reachable_score(top, length, limit, length_penalty, length_penalty_type)
            done = at_limit | (top == -host.inf)
            if candidate_rule == "fairseq":
                done |= n_finished[active] >= beam_size
            score_to_beat = best.score[active, -1]
            if stop_when_decided:
                done |= score_to_beat >= bound
            if at_limit.any():
                unfinished_fields = {"eos_log_probability": 0.0, "node": new_node, "depth": length}
                best.add(active, at_limit, live, False, candidates.log_probability, divisor, **unfinished_fields)
            if observe is not None:
                ranked = continuations.best()
                ranked_fields = node[ranked.row], ranked.token, ranked.log_probability, new_node
                observe(SearchStep(active, *ranked_fields, divisor, score_to_beat, bound, at_limit, done))
            if done.all():
                break

            remaining = _compacted_places(done)
            active = active[remaining]
            row, tokens, node, log_p = _next_rows(
                candidates, live, new_node, remaining, beam_size if refills_beam else None
            )
            if len(row) != len(logits) or (row != host.arange(len(row))).any():
                state.select(row)
    return _read_hypotheses(best, tree)


def _decide(candidates: _Candidates, eos_id: int, beam_size: int, eos_only_in_beam: bool) -> tuple[Array, Array, Array]:
    """Return which candidates end, which stay live, and the array for `SearchStep.node`, each (n, C).

    The array contains ENDED or BEAM_FULL; the caller sets the nodes of live candidates.
    """
    exists = candidates.log_probability > -host.inf
    ended = exists & (candidates.token == eos_id)
    continues = exists & ~ended
    if eos_only_in_beam:
        ended[:, beam_size:] = False
    live = continues & (continues.cumsum(axis=1) <= beam_size)
    return ended, live, host.where(continues, BEAM_FULL, ENDED)


def _best_reachable_score(
    log_p: Array, length: int, limit: Array, length_penalty: float, length_penalty_type: str
) -> Array:
    """Return the best score (n,) that live hypotheses can reach if their log-probability is at most `log_p`.

    The log-probability of a live hypothesis can only fall. The penalty is monotonic in the length, so at any later
    length the score is at most the greater of the scores at `length` + 1 and at `limit`.
    """
    score_at_next = log_p / score_divisor(length + 1, length_penalty, length_penalty_type)
    score_at_limit = log_p / score_divisor(limit, length_penalty, length_penalty_type)
    return host.maximum(score_at_next, score_at_limit)


def _next_rows(
    candidates: _Candidates, live: Array, new_node: Array, remaining: Array, width: int | None
) -> tuple[Array, Array, Array, Array]:
    """Return, for each row (R,) of the next step, the row that it continues, its token, node and log-probability.

    Each sentence gets the same number of rows. If a sentence has fewer live candidates, its other rows are copies of a
    live candidate with log-probability -inf.

    Args:
        remaining: indices of the sentences whose search continues.
        width: number of rows per sentence, in which the live candidates come first. Default: one row per candidate.
    """
    arrays = [live, candidates.log_probability, candidates.row, candidates.token, new_node]
    if width is not None:
        kept_columns = host.argsort(~live, axis=1, kind="stable")[:, :width]
        arrays = [host.take_along_axis(x, kept_columns, axis=1) for x in arrays]
    live, log_p, *others = arrays
    columns = host.where(live, host.arange(live.shape[1]), live.argmax(axis=1)[:, None])[remaining]  # (n, width)
    row, token, node = (host.take_along_axis(x[remaining], columns, axis=1).ravel() for x in others)
    return row, token, node, host.where(live, log_p, -host.inf)[remaining].ravel()


def _compacted_places(done: Array) -> Array:
    """Return the indices of the unfinished sentences; the last ones take the places of the finished ones.

    All others keep their places, so the states of their rows need not be copied.
    """
    (remaining,) = host.nonzero(~done)
    n = len(remaining)
    places = host.arange(n)
    places[done[:n]] = remaining[remaining >= n]
    return places


def _read_hypotheses(best: _BestHypotheses, tree: _PrefixTree) -> list[list[Hypothesis]]:
    """Read the tokens of the best hypotheses, and their log-probabilities, from the prefix tree.

    Tokens are read from the last to the first, for all hypotheses at once.
    """
    parent, token, log_p = map(host.concatenate, (tree.parents, tree.tokens, tree.log_probabilities))
    tokens = host.zeros((*best.node.shape, best.depth.max()), host.int64)  # (B, n_best, T)
    terms = host.zeros(tokens.shape)
    node = best.node.copy()
    for position in reversed(range(tokens.shape[2])):
        has_token = (best.depth > position) & (best.score > -host.inf)
        nodes = node[has_token]
        tokens[has_token, position] = token[nodes]
        terms[has_token, position] = log_p[nodes]
        node[has_token] = parent[nodes]

    def hypothesis(i: int, j: int) -> Hypothesis:
        depth = best.depth[i, j]
        finished = bool(best.finished[i, j])
        return Hypothesis(
            tokens=tokens[i, j, :depth].tolist(),
            score=float(best.score[i, j]),
            log_probability=float(best.log_probability[i, j]),
            finished=finished,
            token_log_probabilities=terms[i, j, :depth].tolist() + [float(best.eos_log_probability[i, j])] * finished,
        )

    n_sentences, n_best = best.score.shape
    return [[hypothesis(i, j) for j in range(n_best) if best.score[i, j] > -host.inf] for i in range(n_sentences)]
