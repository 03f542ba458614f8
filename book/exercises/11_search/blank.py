"""Exercise 11. Beam search."""

END = 0


def beam_search(next_log_p, beam, max_length, alpha):
    """Return the best finished sentence and its score: a tuple (list of tokens without END, float).

    next_log_p(prefix) takes a tuple of tokens and returns a list with the log-probability of each next token. Token END
    finishes a sentence. Of each length, only the `beam` most probable unfinished prefixes are extended. A sentence has
    n tokens, END included, and n is at most `max_length`. Its score is its log-probability divided by
    ((5 + n) / 6) ** alpha.
    """
    ...  # yours
