"""You keep extending finished sentences. A sentence that ends with END must leave the beam."""

END = 0


def beam_search(next_log_p, beam, max_length, alpha):
    live, finished = [((), 0.0)], []
    for n in range(1, max_length + 1):
        extended = [((*p, t), log_p + token_log_p) for p, log_p in live for t, token_log_p in enumerate(next_log_p(p))]
        live = sorted(extended, key=lambda item: -item[1])[:beam]
        finished += [(list(p[:-1]), log_p / ((5 + n) / 6) ** alpha) for p, log_p in live if p[-1] == END]
    return max(finished, key=lambda item: item[1])
