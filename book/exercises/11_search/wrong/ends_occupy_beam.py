"""A finished sentence takes a place in your beam. The beam is only for unfinished prefixes."""

END = 0


def beam_search(next_log_p, beam, max_length, alpha):
    live, finished = [((), 0.0)], []
    for n in range(1, max_length + 1):
        every = [((*p, t), log_p + token_log_p) for p, log_p in live for t, token_log_p in enumerate(next_log_p(p))]
        every = sorted(every, key=lambda item: -item[1])[:beam]
        finished += [(list(p[:-1]), log_p / ((5 + n) / 6) ** alpha) for p, log_p in every if p[-1] == END]
        live = [item for item in every if item[0][-1] != END]
    return max(finished, key=lambda item: item[1])
