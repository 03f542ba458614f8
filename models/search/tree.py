"""The tree of a beam search, for inspection: every candidate of every step, its fate, and why the search ended.

tree = SearchTree()
best = beam_search(model, src_ids, beam_size=4, observe=tree)  # for one sentence
"""

from dataclasses import dataclass

from models.search.beam import BEAM_FULL, ENDED, ROOT, SearchStep
from npx import host  # NumPy, for arrays that stay on the CPU
from npx.messages import plural

KEPT, FINISHED, DROPPED, CUT = "kept", "finished", "dropped", "cut off"  # the fate of a candidate


@dataclass
class Candidate:
    """A hypothesis at one step of the search."""

    length: int  # tokens, EOS included
    parent: int  # index in SearchTree.candidates of the candidate that it extends; -1: the root
    token: int
    log_probability: float  # sum over all its tokens
    score: float  # log_probability / length penalty
    fate: str


class SearchTree:
    """Records the candidates of the first sentence of a search; pass it as `observe`.

    Args:
        max_dropped: maximum number of dropped candidates recorded per step. Default 4.

    Attributes:
        candidates: in order of creation.
        bounds: for each step, the n_best-th best finished score and the best score that a live hypothesis could reach.
        stop_reason: why the search ended.
    """

    def __init__(self, max_dropped: int = 4) -> None:
        self.candidates: list[Candidate] = []
        self.bounds: list[tuple[float, float]] = []
        self.stop_reason = "the search has not ended"
        self.max_dropped = max_dropped
        self.index_of_node = {ROOT: ROOT}

    def __call__(self, step: SearchStep) -> None:
        if step.sentences[0] != 0:
            return
        length = len(self.bounds) + 1
        n_competing = step.node.shape[1]
        for rank in range(min(step.token.shape[1], n_competing + self.max_dropped)):
            log_probability = float(step.log_probability[0, rank])
            if log_probability == -host.inf:
                break
            node = int(step.node[0, rank]) if rank < n_competing else BEAM_FULL
            if node == BEAM_FULL:
                fate = DROPPED
            elif node == ENDED:
                fate = FINISHED
            else:
                fate = CUT if step.at_limit[0] else KEPT
                self.index_of_node[node] = len(self.candidates)
            parent = self.index_of_node[int(step.parent[0, rank])]
            token = int(step.token[0, rank])
            score = log_probability / float(step.score_divisor)
            self.candidates.append(Candidate(length, parent, token, log_probability, score, fate))
        score_to_beat = float(step.score_to_beat[0])
        bound = float(step.bound[0])
        self.bounds.append((score_to_beat, bound))
        if step.done[0]:
            if bound == -host.inf:
                self.stop_reason = "no live hypothesis is left"
            elif step.at_limit[0]:
                self.stop_reason = f"the length limit of {plural(length, 'token')} is reached"
            elif score_to_beat >= bound:
                self.stop_reason = (
                    f"no live hypothesis can score above {bound:.4f}, and one has finished with {score_to_beat:.4f}"
                )
            else:  # the rule "fairseq", with which 2 K candidates compete
                n_finished = plural(n_competing // 2, "finished hypothesis", "finished hypotheses")
                self.stop_reason = f"the limit of {n_finished} is reached"

    def tokens(self, index: int) -> list[int]:
        """Return the tokens of a candidate, starting from the root."""
        tokens: list[int] = []
        while index >= 0:
            tokens.append(self.candidates[index].token)
            index = self.candidates[index].parent
        return tokens[::-1]
