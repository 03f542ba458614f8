"""The lexicon of tags: its laws, its storage in the tokenizer, and the constrained search."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer

from models import TransformerConfig
from models.cache import DecodingState
from models.search import beam_search
from tests.helpers.small_models import build
from train import UserError
from train.tasks.pairs import pad_sources
from train.tasks.parsing.constrained import MAX_OPEN_RUN, ConstrainedParser
from train.tasks.parsing.lexicon import Lexicon
from train.tasks.parsing.linearize import TAGS_OF_PUNCTUATION, tree_from_tokens
from train.tasks.parsing.tokenizer import KINDS, LEXICON, TreeTokenizer
from train.tasks.parsing.trees import Leaf, Tree

TAGS = ["DT", "NN", "VB", "VBD", "JJ"]
LEAVES = st.lists(st.builds(Leaf, st.sampled_from(TAGS), st.text("abcA1-", min_size=1, max_size=5)), min_size=1)


def tree(*leaves):
    return Tree("TOP", [Tree("S", [Tree("NP", [Leaf(*leaf) for leaf in leaves])])])


# ---- estimation


@given(st.lists(LEAVES, min_size=1, max_size=6), st.randoms(), st.text(max_size=5))
def test_every_word_has_tags_including_those_it_was_seen_with(sentences, random, new):
    trees = [tree(*leaves) for leaves in sentences]
    lexicon = Lexicon.from_trees(trees)
    seen = Counter(leaf for t in trees for leaf in t.leaves())
    assert all(leaf.tag in lexicon.tags(leaf.word) for leaf in seen)  # each fewer than 100 times
    assert lexicon.tags(new) and lexicon.tags(new) <= {leaf.tag for leaf in seen}
    shuffled = random.sample(trees, len(trees))
    assert Lexicon.from_trees(shuffled).counts == lexicon.counts == json.loads(json.dumps(lexicon.counts))
    assert list(Lexicon.from_trees(shuffled).counts) == list(lexicon.counts)


def test_smoothing_of_frequent_rare_and_new_words():
    frequent = [tree(("DT", "the"), ("NN", "dog"))] * 300 + [tree(("NN", "the"))]
    rare = [tree((tag, word)) for word in ("walking", "talking", "singing") for tag in ("VBG", "NN")]
    rare += [tree(("JJ", "willing")), tree(("NNP", "Rome"))]
    lexicon = Lexicon.from_trees(frequent + rare)
    assert lexicon.tags("the") == {"DT"} and lexicon.tags("dog") == {"NN"}
    assert {"JJ", "VBG", "NN"} <= lexicon.tags("willing")  # seen once: also the tags of other words in -ing
    assert "VBG" in lexicon.tags("ringing")
    assert "DT" not in lexicon.tags("lathe")  # new words resemble rare ones
    assert "NNP" in lexicon.tags("Oslo") and "NNP" not in lexicon.tags("ringing")


# ---- storage


@pytest.mark.parametrize("kind", KINDS)
def test_the_lexicon_is_stored_in_the_tokenizer(kind, tmp_path):
    trees = [tree(("DT", "the"), ("NN", word), ("VBD", "ran"), (".", ".")) for word in ("cat", "dog", "hat")] * 40
    for tags in (True, False):
        tokenizer = TreeTokenizer.from_trees(trees, kind, 400, tags)
        tokenizer.save(tmp_path / "t.json")
        loaded = TreeTokenizer.load(tmp_path / "t.json")
        assert loaded.digest == tokenizer.digest and (loaded.lexicon is not None) is tags
        HuggingFaceTokenizer.from_file(str(tmp_path / "t.json"))  # the library ignores it
        if tags:
            assert loaded.lexicon.counts == Lexicon.from_trees(trees).counts and loaded.lexicon.tags("ran") == {"VBD"}
            spec = json.loads((tmp_path / "t.json").read_text())
            for wrong in ([], {"NN": 3}, {"NN": {"cat": 0}}, {"NN": {"cat": "1"}}):
                spec["model"][LEXICON] = wrong
                with pytest.raises(UserError, match="x.json: expected counts of words by tag in model.tags"):
                    TreeTokenizer(spec, "x.json")
            del spec["model"][LEXICON]
            assert TreeTokenizer(spec).lexicon is None and TreeTokenizer(spec).uses_tags  # files of older versions


# ---- search


def test_constrained_search_uses_only_tags_of_the_lexicon():
    trees = [tree(("DT", "the"), ("NN", "cat"), ("VBD", "sat"), ("JJ", "big"), (",", ","), (".", "."))] * 200
    tokenizer = TreeTokenizer.from_trees(trees, "affixes", 400, True)
    lexicon = Lexicon.from_trees(trees)
    sentences = [line.split() for line in ("the cat sat .", "big the , cat cat", ", new", "sat")]
    shape = {"d_model": 8, "d_ff": 12, "n_heads": 2, "n_layers": 1, "dropout": 0.0, "n_outputs": tokenizer.n_outputs}
    violations = dict.fromkeys((None, lexicon), 0)
    for seed in range(4):
        model = build(TransformerConfig(tokenizer.vocab_size, **shape), seed)
        src = pad_sources(tokenizer.encode_batch([" ".join(words) for words in sentences]), model.config)
        for option in violations:
            results = beam_search(
                ConstrainedParser(model, tokenizer, sentences, option), src, beam_size=4, n_best=4, max_extra_tokens=60
            )
            for words, hypotheses in zip(sentences, results, strict=True):
                for h in (h for h in hypotheses if h.finished):
                    for leaf in tree_from_tokens(tokenizer.symbols(h.tokens), words)[0].leaves():
                        violations[option] += leaf.tag not in TAGS_OF_PUNCTUATION | lexicon.tags(leaf.word)
    assert violations[lexicon] == 0 < violations[None]


class FixedLogits:
    """A fake model that prefers one symbol, then the symbols in order."""

    training = False

    def __init__(self, config, symbol):
        self.config = config
        self.logits = -np.arange(float(config.n_outputs), dtype=np.float32)
        self.logits[symbol] = 30

    def train(self, mode=True):
        return self

    def length_limits(self, src, max_extra_tokens):
        return (src != 0).sum(axis=1) + max_extra_tokens

    def start_decoding(self, src):
        return np.ones(len(src), int), EmptyState()

    def step(self, tokens, state):
        return np.tile(self.logits, (len(tokens), 1))


class EmptyState(DecodingState):
    def __init__(self):
        pass

    def select(self, rows):
        pass


@pytest.mark.parametrize("beam_size", [1, 4])
def test_open_brackets_in_a_row_are_limited(beam_size):
    trees = [tree(("DT", "the"), ("NN", "cat"), (".", "."))]
    tokenizer = TreeTokenizer.from_trees(trees, "affixes", 400, True)
    words = "the cat the cat .".split()
    symbols = tokenizer.symbols(range(tokenizer.n_outputs))
    config = TransformerConfig(tokenizer.vocab_size, n_outputs=tokenizer.n_outputs)
    model = ConstrainedParser(FixedLogits(config, symbols.index("(NP")), tokenizer, [words])
    (hypotheses,) = beam_search(model, np.array([[9, 9, 9, 9, 2]]), beam_size=beam_size, max_extra_tokens=200)
    tokens = tokenizer.symbols(hypotheses[0].tokens)
    deepest = max(len(run) for run in "".join("(" if t[0] == "(" else " " for t in tokens).split())
    assert hypotheses[0].finished and deepest == MAX_OPEN_RUN and not tree_from_tokens(tokens, words)[1]


def test_a_word_may_have_the_tag_xx(tmp_path):
    trees = [tree(("XX", "foo"), ("NN", "dog"))] * 3
    TreeTokenizer.from_trees(trees, "bpe", 400, True).save(tmp_path / "t.json")
    loaded = TreeTokenizer.load(tmp_path / "t.json")
    assert loaded.symbols(loaded.encode_trees(trees)[0]) == ["(S", "(NP", "XX", "NN", ")NP", ")S"]
