"""The tags that words may have: laws of the lexicon, where it is kept, and a search that is held to it."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer

from models import TransformerConfig
from models.cache import State
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


# ---- what it knows


@given(st.lists(LEAVES, min_size=1, max_size=6), st.randoms(), st.text(max_size=5))
def test_every_word_has_a_tag_and_a_seen_one_those_it_was_seen_with(sentences, random, new):
    trees = [tree(*leaves) for leaves in sentences]
    lexicon = Lexicon.from_trees(trees)
    seen = Counter(leaf for t in trees for leaf in t.leaves())
    assert all(leaf.tag in lexicon.tags(leaf.word) for leaf in seen)  # each fewer than 100 times
    assert lexicon.tags(new) and lexicon.tags(new) <= {leaf.tag for leaf in seen}
    again = random.sample(trees, len(trees))
    assert Lexicon.from_trees(again).counts == lexicon.counts == json.loads(json.dumps(lexicon.counts))
    assert list(Lexicon.from_trees(again).counts) == list(lexicon.counts)


def test_a_frequent_word_loses_slips_a_rare_one_gains_what_its_kind_has():
    often = [tree(("DT", "the"), ("NN", "dog"))] * 300 + [tree(("NN", "the"))]
    rare = [tree((tag, word)) for word in ("walking", "talking", "singing") for tag in ("VBG", "NN")]
    rare += [tree(("JJ", "willing")), tree(("NNP", "Rome"))]
    lexicon = Lexicon.from_trees(often + rare)
    assert lexicon.tags("the") == {"DT"} and lexicon.tags("dog") == {"NN"}
    assert {"JJ", "VBG", "NN"} <= lexicon.tags("willing")  # seen once: what others on -ing are, too
    assert "VBG" in lexicon.tags("ringing")
    assert "DT" not in lexicon.tags("lathe")  # a new word is like rare ones
    assert "NNP" in lexicon.tags("Oslo") and "NNP" not in lexicon.tags("ringing")


# ---- where it is kept


@pytest.mark.parametrize("kind", KINDS)
def test_it_lies_in_the_tokenizer_of_a_parser_that_writes_tags(kind, tmp_path):
    trees = [tree(("DT", "the"), ("NN", word), ("VBD", "ran"), (".", ".")) for word in ("cat", "dog", "hat")] * 40
    for tags in (True, False):
        tokenizer = TreeTokenizer.from_trees(trees, kind, 400, tags)
        tokenizer.save(tmp_path / "t.json")
        again = TreeTokenizer.load(tmp_path / "t.json")
        assert again.digest == tokenizer.digest and (again.lexicon is not None) is tags
        HuggingFaceTokenizer.from_file(str(tmp_path / "t.json"))  # which takes no notice of it
        if tags:
            assert again.lexicon.counts == Lexicon.from_trees(trees).counts and again.lexicon.tags("ran") == {"VBD"}
            spec = json.loads((tmp_path / "t.json").read_text())
            for wrong in ([], {"NN": 3}, {"NN": {"cat": 0}}, {"NN": {"cat": "1"}}):
                spec["model"][LEXICON] = wrong
                with pytest.raises(UserError, match="x.json: expected counts of words by tag in model.tags"):
                    TreeTokenizer(spec, "x.json")
            del spec["model"][LEXICON]
            assert TreeTokenizer(spec).lexicon is None and TreeTokenizer(spec).tags  # as older versions wrote them


# ---- a search that is held to it


def test_a_search_writes_no_tag_that_the_lexicon_does_not_give():
    trees = [tree(("DT", "the"), ("NN", "cat"), ("VBD", "sat"), ("JJ", "big"), (",", ","), (".", "."))] * 200
    tokenizer, lexicon = TreeTokenizer.from_trees(trees, "affixes", 400, True), Lexicon.from_trees(trees)
    sentences = [line.split() for line in ("the cat sat .", "big the , cat cat", ", new", "sat")]
    shape = {"d_model": 8, "d_ff": 12, "n_heads": 2, "n_layers": 1, "dropout": 0.0, "n_outputs": tokenizer.n_outputs}
    written = dict.fromkeys((None, lexicon), 0)
    for seed in range(4):
        model = build(TransformerConfig(tokenizer.vocab_size, **shape), seed)
        src = pad_sources(tokenizer.encode_batch([" ".join(words) for words in sentences]), model.config)
        for held in written:
            found = beam_search(
                ConstrainedParser(model, tokenizer, sentences, held), src, beam=4, n_best=4, max_extra=60
            )
            for words, hypotheses in zip(sentences, found, strict=True):
                for h in (h for h in hypotheses if h.finished):
                    for leaf in tree_from_tokens(tokenizer.symbols(h.tokens), words)[0].leaves():
                        written[held] += leaf.tag not in TAGS_OF_PUNCTUATION | lexicon.tags(leaf.word)
    assert written[lexicon] == 0 < written[None]


class Fond:
    """A model that would write one symbol for ever, and next best what comes first."""

    training = False

    def __init__(self, config, symbol):
        self.config, self.logits = config, -np.arange(float(config.n_outputs), dtype=np.float32)
        self.logits[symbol] = 30

    def train(self, mode=True):
        return self

    def limits(self, src, max_extra):
        return (src != 0).sum(axis=1) + max_extra

    def start(self, src):
        return np.ones(len(src), int), Nothing()

    def step(self, tokens, state):
        return np.tile(self.logits, (len(tokens), 1))


class Nothing(State):
    def __init__(self):
        pass

    def select(self, rows):
        pass


@pytest.mark.parametrize("beam", [1, 4])
def test_a_model_that_opens_brackets_for_ever_has_to_write_the_words(beam):
    trees = [tree(("DT", "the"), ("NN", "cat"), (".", "."))]
    tokenizer, words = TreeTokenizer.from_trees(trees, "affixes", 400, True), "the cat the cat .".split()
    symbols = tokenizer.symbols(range(tokenizer.n_outputs))
    config = TransformerConfig(tokenizer.vocab_size, n_outputs=tokenizer.n_outputs)
    model = ConstrainedParser(Fond(config, symbols.index("(NP")), tokenizer, [words])
    (found,) = beam_search(model, np.array([[9, 9, 9, 9, 2]]), beam=beam, max_extra=200)
    tokens = tokenizer.symbols(found[0].tokens)
    deepest = max(len(run) for run in "".join("(" if t[0] == "(" else " " for t in tokens).split())
    assert found[0].finished and deepest == MAX_OPEN_RUN and not tree_from_tokens(tokens, words)[1]
