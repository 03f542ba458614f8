"""Search for a model's most probable output, sampling of outputs, and the probability of a given output."""

from models.search.alignment import align, check_alignable
from models.search.beam import SearchStep, beam_search
from models.search.ensemble import Ensemble
from models.search.forced import forced_log_probabilities
from models.search.greedy import greedy_search
from models.search.prefix import PrefixConstrainedModel
from models.search.protocol import (
    CANDIDATE_RULES,
    LENGTH_PENALTY_RANGE,
    LENGTH_PENALTY_TYPES,
    Hypothesis,
    SearchModel,
    check_search,
    score_divisor,
)
from models.search.sampling import check_sampling, sample, sample_outputs
