"""You extend a single prefix, whatever `beam` is. Keep the `beam` most probable ones."""

END = 0


def beam_search(next_log_p, beam, max_length, alpha):
    live, finished = [((), 0.0)], []
    for n in range(1, max_length + 1):
        extended = []
        for prefix, log_p in live:
            for token, token_log_p in enumerate(next_log_p(prefix)):
                if token == END:
                    finished.append((list(prefix), (log_p + token_log_p) / ((5 + n) / 6) ** alpha))
                else:
                    extended.append(((*prefix, token), log_p + token_log_p))
        live = sorted(extended, key=lambda item: -item[1])[:1]
    return max(finished, key=lambda item: item[1])
