"""Exercise 11. The most probable sentence."""

END = 0


def beam_search(next_log_p, beam, longest, alpha):
    """The best finished sentence found, and its score: a tuple (list of tokens without END, float).

    next_log_p(prefix), prefix a tuple of tokens, gives a list of log-probabilities, one for each token; token END ends
    a sentence. Only the `beam` most probable unfinished prefixes of a length go on. A sentence has at most `longest`
    tokens, n of them, END counted; its score is its log-probability divided by ((5 + n) / 6) ** alpha.
    """
    ...  # yours
