"""Cleaning of pairs (train/text/download/clean.py), compared with a plain implementation."""

import hashlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.text.download.clean import Cleaner, HashSet, Rules, is_non_latin

words = st.lists(st.sampled_from("ein a Haus der the größte 東京 Дом 12 . x".split()), max_size=6).map(" ".join)
pairs = st.lists(st.tuples(words, words), max_size=40)


def clean_plainly(pairs, rules):
    """Clean like Cleaner, one pair at a time and with a set."""
    counts = Counter()
    clean = []
    seen = set()
    for src, tgt in pairs:
        a, b = " ".join(src.split()), " ".join(tgt.split())
        longer, shorter = max(len(a), len(b)) + 20, min(len(a), len(b)) + 20
        if not a or not b:
            reason = "empty"
        elif rules.max_words and max(len(a.split()), len(b.split())) > rules.max_words:
            reason = "long"
        elif rules.max_ratio and longer > rules.max_ratio * shorter:
            reason = "ratio"
        elif rules.scripts and any(
            2 * sum(c in "東京Дом" for c in side) > sum(c.isalpha() for c in side) for side in (a, b)
        ):
            reason = "script"
        elif rules.duplicates and (a, b) in seen:
            reason = "duplicate"
        else:
            reason = "kept"
            clean.append((a, b))
        seen.add((a, b))
        counts[reason] += 1
    return clean, counts


@given(pairs, st.sampled_from([0, 3]), st.sampled_from([0, 1.3]), st.booleans(), st.booleans(), st.integers(1, 5))
def test_cleaning_equals_a_plain_implementation(pairs, max_words, ratio, scripts, duplicates, chunk):
    rules = Rules(max_words, ratio, scripts, duplicates)
    cleaner = Cleaner(rules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train.text.download.clean.CHUNK", chunk)
        clean = [*cleaner.filter(pairs)]
    expected, counts = clean_plainly(pairs, rules)
    assert clean == expected
    assert {reason: n for reason, n in cleaner.counts.items() if n and reason != "read"} == counts
    assert cleaner.counts["read"] == len(pairs) == sum(counts.values())


@given(st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=30), max_size=6))
def test_the_hash_set_equals_a_set(batches):
    """The table is so small that slots collide and it grows."""
    seen = HashSet(4)
    plain = set()
    for batch in batches:
        new = seen.add([hashlib.blake2b(bytes([n]), digest_size=8).digest() for n in batch]).tolist()
        for n, fresh in zip(batch, new, strict=True):
            assert fresh == (n not in plain)
            plain.add(n)
    assert seen.size == len(plain) == (seen.table > 0).sum() and 2 * seen.size <= len(seen.table)


@pytest.mark.parametrize("text", ["Ärger über Œuvre", "ﬁn", "12 — 34 …", "日本 is Japan", "ẞ", "x²", "α-Strahlen"])
def test_latin_text_with_a_few_other_letters_is_latin(text):
    assert (
        not is_non_latin(text)
        and is_non_latin("日本語のテキスト ok")
        and is_non_latin("Привет, мир")
        and is_non_latin("𝟙 עברית")
    )
