"""The beam is a dictionary from prefixes to log-probabilities."""

END = 0


def beam_search(next_log_p, beam, max_length, alpha):
    def score(log_p, n):
        return log_p / ((5 + n) / 6) ** alpha

    best = None, float("-inf")
    live = {(): 0.0}
    for n in range(1, max_length + 1):
        extended = {}
        for prefix, log_p in live.items():
            row = next_log_p(prefix)
            ended = score(log_p + row[END], n)
            if ended > best[1]:
                best = list(prefix), ended
            for token in range(1, len(row)):
                total = log_p + row[token]
                extended[(*prefix, token)] = total
        order = sorted(extended, key=extended.get, reverse=True)
        live = {prefix: extended[prefix] for prefix in order[:beam]}
    return best
