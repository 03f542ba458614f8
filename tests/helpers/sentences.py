"""27 sentences of a small grammar, from which models can learn parts of speech."""

NOUNS, VERBS = ("cat", "dog", "bird"), ("sees", "hears", "likes")
SENTENCES = [f"the {a} {v} the {b}" for a in NOUNS for v in VERBS for b in NOUNS]
