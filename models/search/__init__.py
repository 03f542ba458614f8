"""Search for the most probable output of a model, and sampling from it."""

from models.search.beam import SearchStep, beam_search
from models.search.greedy import greedy_search
from models.search.protocol import PENALTIES, Hypothesis, SearchModel, check_search, length_penalty
from models.search.sampling import check_sampling, sample
