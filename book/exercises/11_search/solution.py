"""Exercise 11. The most probable sentence."""

END = 0


def beam_search(next_log_p, beam, longest, alpha):
    """The best finished sentence found, and its score: a tuple (list of tokens without END, float).

    next_log_p(prefix), prefix a tuple of tokens, gives a list of log-probabilities, one for each token; token END ends
    a sentence. Only the `beam` most probable unfinished prefixes of a length go on. A sentence has at most `longest`
    tokens, n of them, END counted; its score is its log-probability divided by ((5 + n) / 6) ** alpha.
    """
    live, finished = [((), 0.0)], []
    for n in range(1, longest + 1):
        grown = []
        for prefix, log_p in live:
            for token, more in enumerate(next_log_p(prefix)):
                if token == END:  # leaves the beam, and is not asked again
                    finished.append((list(prefix), (log_p + more) / ((5 + n) / 6) ** alpha))
                else:
                    grown.append(((*prefix, token), log_p + more))
        live = sorted(grown, key=lambda item: -item[1])[:beam]  # by probability: all have the same length
    return max(finished, key=lambda item: item[1])
