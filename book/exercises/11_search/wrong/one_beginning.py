"""One beginning goes on, whatever the beam. Of all that grew, the `beam` most probable do."""

END = 0


def beam_search(next_log_p, beam, longest, alpha):
    live, finished = [((), 0.0)], []
    for n in range(1, longest + 1):
        grown = []
        for prefix, log_p in live:
            for token, more in enumerate(next_log_p(prefix)):
                if token == END:
                    finished.append((list(prefix), (log_p + more) / ((5 + n) / 6) ** alpha))
                else:
                    grown.append(((*prefix, token), log_p + more))
        live = sorted(grown, key=lambda item: -item[1])[:1]
    return max(finished, key=lambda item: item[1])
