"""Search for a model's most probable output, sampling of outputs, and the probability of a given output."""

from models.search.alignment import align, check_alignable
from models.search.beam import SearchStep, beam_search
from models.search.ensemble import Ensemble
from models.search.forced import forced_log_probabilities
from models.search.greedy import greedy_search
from models.search.prefix import ForcedPrefix
from models.search.protocol import (
    ALPHA_RANGE,
    CANDIDATE_RULES,
    PENALTY_TYPES,
    Hypothesis,
    SearchModel,
    check_search,
    length_penalty,
)
from models.search.sampling import check_sampling, sample, sample_outputs
