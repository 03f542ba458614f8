"""Cleaning pairs (train/text/download/clean.py): as the rules say, each pair counted once."""

import hashlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.text.download.clean import Cleaner, HashSet, Rules, is_non_latin

words = st.lists(st.sampled_from("ein a Haus der the größte 東京 Дом 12 . x".split()), max_size=6).map(" ".join)
pairs = st.lists(st.tuples(words, words), max_size=40)


def plainly(pairs, rules):
    """What Cleaner does, with a set and one pair at a time."""
    counts, kept, seen = Counter(), [], set()
    for src, tgt in pairs:
        a, b = " ".join(src.split()), " ".join(tgt.split())
        longer, shorter = max(len(a), len(b)) + 20, min(len(a), len(b)) + 20
        if not a or not b:
            why = "empty"
        elif rules.max_words and max(len(a.split()), len(b.split())) > rules.max_words:
            why = "long"
        elif rules.max_ratio and longer > rules.max_ratio * shorter:
            why = "ratio"
        elif rules.scripts and any(
            2 * sum(c in "東京Дом" for c in side) > sum(c.isalpha() for c in side) for side in (a, b)
        ):
            why = "script"
        elif rules.duplicates and (a, b) in seen:
            why = "duplicate"
        else:
            why = "kept"
            kept.append((a, b))
        seen.add((a, b))
        counts[why] += 1
    return kept, counts


@given(pairs, st.sampled_from([0, 3]), st.sampled_from([0, 1.3]), st.booleans(), st.booleans(), st.integers(1, 5))
def test_cleaning_is_what_its_rules_say_and_every_pair_is_counted_once(pairs, most, ratio, scripts, duplicates, chunk):
    rules = Rules(most, ratio, scripts, duplicates)
    cleaner = Cleaner(rules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train.text.download.clean.CHUNK", chunk)
        kept = [*cleaner.filter(pairs)]
    expected, counts = plainly(pairs, rules)
    assert kept == expected
    assert {reason: n for reason, n in cleaner.counts.items() if n and reason != "read"} == counts
    assert cleaner.counts["read"] == len(pairs) == sum(counts.values())


@given(st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=30), max_size=6))
def test_what_was_seen_is_a_set(batches):
    """In a table so small that places collide and it grows."""
    seen, plain = HashSet(4), set()
    for batch in batches:
        new = seen.add([hashlib.blake2b(bytes([n]), digest_size=8).digest() for n in batch]).tolist()
        for n, fresh in zip(batch, new, strict=True):
            assert fresh == (n not in plain)
            plain.add(n)
    assert seen.size == len(plain) == (seen.table > 0).sum() and 2 * seen.size <= len(seen.table)


@pytest.mark.parametrize("text", ["Ärger über Œuvre", "ﬁn", "12 — 34 …", "日本 is Japan", "ẞ", "x²", "α-Strahlen"])
def test_latin_text_with_some_of_others_is_no_foreign_text(text):
    assert (
        not is_non_latin(text)
        and is_non_latin("日本語のテキスト ok")
        and is_non_latin("Привет, мир")
        and is_non_latin("𝟙 עברית")
    )
