"""A sentence that ends takes a place of the beam here: the beam is for those that go on."""

END = 0


def beam_search(next_log_p, beam, longest, alpha):
    live, finished = [((), 0.0)], []
    for n in range(1, longest + 1):
        every = [((*p, t), log_p + more) for p, log_p in live for t, more in enumerate(next_log_p(p))]
        every = sorted(every, key=lambda item: -item[1])[:beam]
        finished += [(list(p[:-1]), log_p / ((5 + n) / 6) ** alpha) for p, log_p in every if p[-1] == END]
        live = [item for item in every if item[0][-1] != END]
    return max(finished, key=lambda item: item[1])
