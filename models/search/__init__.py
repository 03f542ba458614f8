"""Search: the sentences a trained model finds most probable."""

from models.search.beam import beam_search
from models.search.greedy import greedy_search
from models.search.protocol import PENALTIES, Hypothesis, SearchModel, check_search, length_penalty
from models.search.sampling import check_sampling, sample
