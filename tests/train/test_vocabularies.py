"""Separate vocabularies of source and target, from the text to the translation."""

import json

import pytest
from tokenizers.decoders import Fuse
from tokenizers.pre_tokenizers import WhitespaceSplit

from tests.helpers.trainings import one_line, tables
from train import RunConfig, load_model, train
from train.cli import main
from train.errors import UserError
from train.run.checkpoint import load_checkpoint
from train.run.folder import RunFolder
from train.tasks import TASKS
from train.tasks.translation import best_translations
from train.text.affixes import WordTokenizer, affix_spec
from train.text.corpus import PairCorpus
from train.text.labeled_text import make_label_tokenizer
from train.text.pair_tokenizer import PairTokenizer, load_tokenizer
from train.text.tokenizer import SPECIALS, Tokenizer, tokenizer_spec


def configuration(folder, model=(), data=(), **changes):
    values = tables(folder, **{"max_steps": 3, "gradient_accumulation_steps": 1} | changes)
    values["data"] |= {"vocabularies": "separate", "vocab_size": 400} | dict(data)
    values["model"] |= dict(model)
    return RunConfig.from_dict(values)


@pytest.fixture(scope="module")
def out(text, tmp_path_factory):
    out = tmp_path_factory.mktemp("separate") / "run"
    train(configuration(text, bpe_dropout=0.2), out, progress=False)
    return out


def test_each_side_has_a_tokenizer_trained_on_it(text, out, tmp_path):
    tokenizer = load_tokenizer(out / "tokenizer.json")
    assert isinstance(tokenizer, PairTokenizer)
    for side, language in (("source", "en"), ("target", "de")):
        alone = Tokenizer.train(text / f"train.{language}", vocab_size=400)
        assert getattr(tokenizer, side).digest == alone.digest
        lines = (text / f"train.{language}").read_text(encoding="utf-8").splitlines()
        encode = tokenizer.encode_batch if side == "source" else tokenizer.target.encode_batch
        assert encode(lines) == alone.encode_batch(lines)
    assert tokenizer.decode(tokenizer.target.encode("fünf null")) == "fünf null"
    corpus = PairCorpus.open(out / "data" / "train")
    first = [(text / f"train.{language}").read_text(encoding="utf-8").split("\n")[0] for language in ("en", "de")]
    assert corpus.pair(0) == (tokenizer.encode(first[0]), tokenizer.target.encode(first[1]))
    tokenizer.save(tmp_path / "copy.json")
    assert (tmp_path / "copy.json").read_bytes() == (out / "tokenizer.json").read_bytes()
    assert load_tokenizer(tmp_path / "copy.json").digest == tokenizer.digest


def test_the_model_has_two_embeddings_and_the_commands_use_both(text, out, tmp_path, capsys):
    model, tokenizer, config = load_model(out)
    names = dict(model.named_parameters())
    assert names["source_embedding.weight"].shape == (tokenizer.source.vocab_size, 8)
    assert names["embedding.weight"].shape == (tokenizer.target.vocab_size, 8) and "projection" not in names
    assert tokenizer.source.vocab_size != tokenizer.target.vocab_size
    assert len(best_translations(model, tokenizer, ["one two", ""], beam_size=2)) == 2
    assert main(["info", str(out)]) == 0
    sizes = f"{tokenizer.source.vocab_size} source and {tokenizer.vocab_size} target tokens, one matrix for target and"
    assert sizes in capsys.readouterr().out
    assert main(["draw", str(out), "roles", "--out", str(tmp_path / "roles.svg"), "--sentences", "2"]) == 0
    assert main(["draw", str(out), "heads", "--out", str(tmp_path / "a.svg"), "--input", "one two"]) == 0
    train(configuration(text, bpe_dropout=0.2, max_steps=4), out, resume=True, progress=False)
    assert load_checkpoint(RunFolder(out).step_paths()[-1]).state["step"] == 4


def test_prefixes_scores_and_alignments_use_the_vocabulary_of_their_side(out, tmp_path, capfd):
    _, tokenizer, _ = load_model(out)
    source, prefix = tmp_path / "source", tmp_path / "prefix"
    source.write_text("one two\nnine\n", encoding="utf-8")
    prefix.write_text("fünf null\nvier\n", encoding="utf-8")
    capfd.readouterr()
    model = ["--model", str(out), "--json"]
    options = ["--input", str(source), "--prefixes", str(prefix), "--scores", "--alignments", "--max-extra-tokens", "3"]
    assert main(["translate", *model, *options]) == 0
    for line, o in zip(("one two", "nine"), map(json.loads, capfd.readouterr().out.splitlines()), strict=True):
        assert o["text"].startswith(("fünf null", "vier")[o["index"]])
        assert o["source_tokens"] == tokenizer.source.subwords(tokenizer.source.encode(line))
        words = [int(i) for link in o["alignment"].split() for i in link.split("-")[:1]]
        assert set(words) <= set(range(len(line.split())))
    assert main(["score", *model, "--pairs", str(source), str(prefix)]) == 0
    for line, o in zip(("fünf null", "vier"), map(json.loads, capfd.readouterr().out.splitlines()), strict=True):
        assert o["text"] == line
        assert o["tokens"] == [*tokenizer.target.subwords(tokenizer.target.encode(line)), "</s>"]


def test_incompatible_options_raise_a_one_line_error(text, out, tmp_path):
    other = tmp_path / "other.json"
    Tokenizer.train(text / "train.en", vocab_size=290).save(other)
    affixes, labels = tmp_path / "affixes.json", tmp_path / "labels.json"
    WordTokenizer(affix_spec([["one", "two"]] * 2, SPECIALS, 200)).save(affixes)
    PairTokenizer(Tokenizer.load(other), make_label_tokenizer("f", ["a", "b"])).save(labels)
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps({"source": {}, "target": {"model": {}}}))
    cases = [
        ({"model": {"tying": "all"}}, 'model.tying: expected output or none with separate .*; got "all"; try "output"'),
        ({"data": {"tokenizer": str(other)}}, "data.vocabularies: expected shared with .*; got separate; try --set"),
        ({"data": {"tokenizer": str(out / "tokenizer.json"), "vocabularies": "shared"}}, "expected separate with .*;"),
        ({"data": {"tokenizer": str(affixes)}}, "expected a tokenizer whose tokens .*; got affixes; try bpe or wordp"),
        ({"data": {"tokenizer": str(labels)}}, "expected a tokenizer whose tokens .*; got labels; try bpe or wordpi"),
        ({"data": {"tokenizer": str(broken)}}, "broken.json: expected a tokenizer as 'source'; got JSON without"),
    ]
    for changes, message in cases:
        with pytest.raises(UserError, match=message) as error:
            train(configuration(text, **changes), tmp_path / "run", progress=False)
        one_line(error)


@pytest.mark.parametrize("task", ["translation", "masking"])
def test_a_vocabulary_of_words_from_another_program_is_not_one_of_affixes(tmp_path, task):
    model = {"type": "WordLevel", "vocab": {token: i for i, token in enumerate((*SPECIALS, "the", "cat"))}}
    spec = tokenizer_spec(model | {"unk_token": "<unk>"}, None, WhitespaceSplit(), Fuse())
    (tmp_path / "words.json").write_text(json.dumps(spec))
    tokenizer = TASKS[task].load_tokenizer(tmp_path / "words.json")
    assert tokenizer.encode("the cat sat") == [4, 5, 3]
    if task == "translation":
        assert TASKS[task].adapt_tokenizer(tokenizer, None, ()) is tokenizer
    else:
        with pytest.raises(UserError, match="expected a Hugging Face tokenizer.json, whose tokens show where words"):
            TASKS[task].adapt_tokenizer(tokenizer, None, ())
