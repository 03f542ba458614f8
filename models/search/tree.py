"""The tree of a beam search, for those who look: every candidate of every step, its fate, and why the search ended.

tree = Tree()
best = beam_search(model, src, beam=4, observe=tree)      # of one sentence
"""

from dataclasses import dataclass
from typing import Any

from models.cache import State
from models.search.beam import Moment
from models.search.protocol import SearchModel
from npx import Array, from_host, host, to_host

KEPT, FINISHED, DROPPED, CUT = "kept", "finished", "dropped", "cut off"  # what becomes of a candidate


@dataclass
class Candidate:
    """A hypothesis of `length` tokens, EOS counted, as a step of the search saw it."""

    length: int
    parent: int  # index into Tree.candidates of the one it goes on from; -1: the beginning
    token: int
    log_probability: float  # of all its tokens
    score: float  # divided by the length penalty
    fate: str


class Tree:
    """Candidates of the first sentence of a search, step by step; `dropped`: how many of a step's are kept in mind."""

    def __init__(self, dropped: int = 4) -> None:
        self.candidates: list[Candidate] = []
        self.bounds: list[tuple[float, float]] = []  # of each step: the score to beat, what a live one can reach
        self.why = "the search has not ended"
        self.dropped = dropped
        self.place = {-1: -1}  # node of the search -> index

    def __call__(self, moment: Moment) -> None:
        if moment.sentences[0] != 0:
            return
        length, beam = len(self.bounds) + 1, moment.node.shape[1]
        for rank in range(min(moment.token.shape[1], beam + self.dropped)):
            log_probability = float(moment.log_probability[0, rank])
            if log_probability == -host.inf:
                break
            node = int(moment.node[0, rank]) if rank < beam else -1
            fate = DROPPED if rank >= beam else FINISHED if node < 0 else CUT if moment.at_limit[0] else KEPT
            if node >= 0:
                self.place[node] = len(self.candidates)
            parent, token = self.place[int(moment.parent[0, rank])], int(moment.token[0, rank])
            score = log_probability / float(moment.penalty)
            self.candidates.append(Candidate(length, parent, token, log_probability, score, fate))
        worst, bound = float(moment.worst[0]), float(moment.bound[0])
        self.bounds.append((worst, bound))
        if moment.done[0]:
            if bound == -host.inf:
                self.why = "no hypothesis is left to go on with"
            elif worst >= bound:
                self.why = f"no live hypothesis can come above {bound:.4f}, and {worst:.4f} has been found"
            else:
                self.why = f"the greatest length, {length} tokens, is reached"

    def tokens(self, index: int) -> list[int]:
        """The tokens of a candidate from the beginning, its own the last."""
        found: list[int] = []
        while index >= 0:
            found.append(self.candidates[index].token)
            index = self.candidates[index].parent
        return found[::-1]


class Forced:
    """`model`, for which all hypotheses begin with the tokens `prefix`: a model for search in its place.

    What the model gives to other tokens is lost to the hypothesis, so that its log-probability is the model's own.
    """

    def __init__(self, model: Any, prefix: list[int]) -> None:
        self.model: SearchModel = model
        self.prefix, self.config = prefix, self.model.config

    @property
    def training(self) -> bool:
        return self.model.training

    def train(self, mode: bool = True) -> Any:
        return self.model.train(mode)

    def limits(self, src: Array, max_extra: int) -> Array:
        return host.maximum(self.model.limits(src, max_extra), len(self.prefix))

    def start(self, src: Array) -> tuple[Array, "Counted"]:
        tokens, state = self.model.start(src)
        return tokens, Counted(state)

    def step(self, tokens: Array, state: "Counted") -> Array:
        logits = self.model.step(tokens, state.inner)
        state.length += 1
        if state.length > len(self.prefix):
            return logits
        forced = self.prefix[state.length - 1]
        values = to_host(logits).astype(host.float64)  # (R, V)
        values -= values.max(axis=1, keepdims=True)
        others = host.exp(values).sum(axis=1) - host.exp(values[:, forced])
        kept = host.full_like(values, -host.inf)
        kept[:, forced] = values[:, forced]
        with host.errstate(divide="ignore"):
            kept[:, self.config.pad_id] = host.log(host.maximum(others, 0))  # which is never chosen
        return from_host(kept.astype(host.float32))


class Counted(State):
    """The model's state and the number of tokens that it has seen."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.length = inner, 0
