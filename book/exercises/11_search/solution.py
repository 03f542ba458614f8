"""Exercise 11. Beam search."""

END = 0


def beam_search(next_log_p, beam, max_length, alpha):
    """Return the best finished sentence and its score: a tuple (list of tokens without END, float).

    next_log_p(prefix) takes a tuple of tokens and returns a list with the log-probability of each next token. Token END
    finishes a sentence. Of each length, only the `beam` most probable unfinished prefixes are extended. A sentence has
    n tokens, END included, and n is at most `max_length`. Its score is its log-probability divided by
    ((5 + n) / 6) ** alpha.
    """
    live, finished = [((), 0.0)], []
    for n in range(1, max_length + 1):
        extended = []
        for prefix, log_p in live:
            for token, token_log_p in enumerate(next_log_p(prefix)):
                if token == END:  # leaves the beam and is not extended
                    finished.append((list(prefix), (log_p + token_log_p) / ((5 + n) / 6) ** alpha))
                else:
                    extended.append(((*prefix, token), log_p + token_log_p))
        live = sorted(extended, key=lambda item: -item[1])[:beam]  # all have the same length: compare by probability
    return max(finished, key=lambda item: item[1])
