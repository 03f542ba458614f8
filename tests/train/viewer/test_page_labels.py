"""The page's views of classifiers and taggers; see conftest.py."""

import base64
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from models import TransformerConfig
from tests.helpers.pages import served, turn_to, until, view
from train import RunConfig, UserError
from train.cli.serve import load_page
from train.run import checkpoint
from train.tasks.line_predictions import label_lines
from train.text.affixes import WordTokenizer, affix_spec
from train.text.labeled_text import make_label_tokenizer
from train.text.pair_tokenizer import PairTokenizer
from train.text.tokenizer import SPECIALS, Tokenizer
from train.viewer.inspection import token_texts
from train.viewer.label_inspection import inspect_encoder, inspect_labels
from train.viewer.server import Page
from train.viewer.trace import Trace, norm

TEXTS = {"classification": "the cat sees the dog", "tagging": "the dog hears  the bird"}
TASKS = [*TEXTS]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The pages of a small untrained classifier, with a pooler and token types, and a tagger."""
    folder = tmp_path_factory.mktemp("labels")
    words = ["the cat sees the dog", "the dog hears the bird", "the bird likes the cat"] * 3
    file = folder / "text"
    file.write_text("\n".join(words), encoding="utf-8")
    tags = make_label_tokenizer("labels", ["DT", "NN", "VB"])
    tokenizer = PairTokenizer(Tokenizer.train(file, vocab_size=300), tags)
    sizes = {"n_layers": 2, "n_heads": 2, "d_model": 16, "d_ff": 32, "norm_placement": "pre", "dropout": 0.1}
    options = {"classification": {"pooler": True, "token_types": 2, "positions": "learned"}, "tagging": {}}
    made = {}
    for task, more in options.items():
        config = TransformerConfig(
            vocab_size=tokenizer.vocab_size, src_vocab_size=tokenizer.src_vocab_size, architecture="encoder",
            **sizes, **more,
        )  # fmt: skip
        model = config.build(seed=3).eval()
        for p in model.parameters():
            p.data *= 2  # probabilities that are far from uniform
        run = RunConfig.from_dict({"data": {"task": task}})
        made[task] = Page({}, model, tokenizer, run, examples=[TEXTS[task]])
    return made


def ask(page, name, **query):
    answer = getattr(page.sentences, name)(query, lambda item: None)
    json.dumps(answer, allow_nan=False)
    return answer


@pytest.mark.parametrize("task", TASKS)
def test_the_labels_are_those_of_classify_and_the_loss_is_that_of_the_model(pages, task):
    page = pages[task]
    answer = ask(page, "translate", text=TEXTS[task])
    (expected,) = label_lines(page.model, page.tokenizer, [TEXTS[task]], task)
    tags = [target.rsplit("/", 1)[-1] for target in answer["target"]]
    assert tags == expected.labels
    np.testing.assert_allclose(answer["p"], expected.probabilities.max(axis=1), rtol=1e-5)
    assert all(
        len(options) == 3 and sum(o["p"] for o in options) == pytest.approx(1) for options in answer["alternatives"]
    )
    if task == "tagging":
        assert [target.rsplit("/", 1)[0] for target in answer["target"]] == expected.words
    _, ids, _ = page.sentences.recent[answer["translation"]]
    model = page.model
    loss = model.loss(*(np.array([row]) for row in ids), label_smoothing=0.0)
    loss.backward()
    gradients = {name: norm(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    for p in model.parameters():
        p.grad = None
    trace = Trace(model, ids)
    assert ask(page, "overview", translation=answer["translation"])["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert trace.parameter_gradients.keys() == gradients.keys()
    for name, value in gradients.items():
        assert trace.parameter_gradients[name] == pytest.approx(value, rel=1e-4, abs=1e-7), name


@pytest.mark.parametrize(("task", "text"), [("classification", "the cat\tthe dog"), ("tagging", "dogs  the")])
def test_a_picture_of_heads_reads_the_input_of_classify(pages, task, text):
    page = pages[task]
    inspection = inspect_encoder(page.model, page.tokenizer, text, task)
    labeled = inspect_labels(page.model, page.tokenizer, text, task)
    assert inspection.source == labeled.inspection.source and inspection.source.count("</s>") == 1 + ("\t" in text)
    expected = page.model.attention_maps(np.array([labeled.ids]))
    np.testing.assert_array_equal(inspection.maps["text"], np.concatenate(expected))


@pytest.mark.parametrize("task", TASKS)
def test_nan_in_the_weights_is_reported(pages, task):
    page = pages[task]
    weight = next(page.model.parameters())
    values = weight.data.copy()
    weight.data[...] = np.nan
    try:
        with pytest.raises(FloatingPointError, match="expected finite logits; got NaN or infinity"):
            ask(page, "translate", text=f"{TEXTS[task]} again")
    finally:
        weight.data[...] = values


@pytest.mark.parametrize("task", TASKS)
def test_every_block_of_an_encoder_opens_with_its_matrices(pages, task):
    page = pages[task]
    answer = ask(page, "translate", text=TEXTS[task])
    flow = ask(page, "overview", translation=answer["translation"])
    assert [*flow["blocks"]] == [block["name"] for block in page.blocks]
    assert ("pooler" in flow["blocks"]) == (task == "classification")
    counted = sum(block["parameters"] for block in page.blocks)
    assert counted == page.model.n_parameters()  # each belongs to one block
    maps = page.model.attention_maps(np.array([page.sentences.recent[answer["translation"]][1][0]]))
    for block in page.blocks:
        opened = ask(page, "block", translation=answer["translation"], block=block["name"], head=0)
        for one in opened["matrices"]:
            assert one["shape"][0] == len(one["rows"]), (block["name"], one["title"])
        assert opened["block"] == block["name"] and opened["text" if block["kind"] != "other" else "matrices"]
        if block["kind"] == "attention":
            assert block["title"] == "Self-attention" and "itself" not in opened["text"]
            weights = next(one for one in opened["matrices"] if one["title"].startswith("weights"))
            assert weights["rows"] == weights["columns"] == answer["source"] and weights["masked"] is None
            shown = np.frombuffer(base64.b64decode(weights["values"]), "<f4").reshape(weights["shape"])
            np.testing.assert_allclose(shown, maps[block["layer"]][0, 0], atol=1e-5)
    output = ask(page, "block", translation=answer["translation"], block="output")
    assert output["targets"] == answer["target"] or task == "tagging"
    assert output["matrices"][-1]["shape"] == [len(answer["target"]), page.model.config.vocab_size]


@pytest.mark.parametrize("task", TASKS)
def test_an_ablated_head_changes_the_probabilities_and_a_bad_text_is_reported(pages, task):
    page = pages[task]
    before = ask(page, "translate", text=TEXTS[task])
    ablated = ask(page, "translate", text=TEXTS[task], ablated_heads=["text.0.1"])
    assert before["p"] != ablated["p"] and ablated["ablated_heads"] == ["text.0.1"]
    for text in ("", " ", "cat " * 400):
        with pytest.raises(UserError, match=r"text: expected 1 to \d+ tokens; got"):
            ask(page, "translate", text=text)


@pytest.mark.parametrize("task", TASKS)
def test_the_model_view_of_a_classifier_and_a_tagger(tab, pages, task):
    name = {"classification": "Classify", "tagging": "Tag"}[task]
    with served(pages[task], tab=tab) as address:
        view(tab, address, "")
        tab.wait_for_selector("#model[data-flow]", state="attached")
        assert tab.locator("nav a").all_inner_texts() == ["Model", name, "Step", "Curves"]
        assert tab.inner_text("#model h3 >> nth=0") == "Encoder only"
        assert tab.locator("#model .thumbnail").count() == tab.locator("#model .block").count()
        tab.click("h1")
        tab.keyboard.press("End")  # the last of the backward pass
        until(tab, "document.querySelector('#model .opened').dataset.block === 'text_embedding'")
        tab.click("[aria-label=Direction] .forward")
        tab.click("[data-block=output]")
        until(tab, "document.querySelector('#model .opened').dataset.block === 'output'")
        assert tab.inner_text("#model .matrix b >> nth=0") == "probabilities p"
        turn_to(tab, "translate")
        assert tab.title() == f"{name} – npx-transformer"
        tab.click("button.token >> nth=0")
        assert tab.locator("#others span.token").count() == 2 and not tab.locator(".alternative").count()
        tab.hover("button.token >> nth=0")
        tab.click("[data-head='text.1.0']")
        tab.wait_for_selector("#head .matrix")
        tab.click("#switch")
        tab.wait_for_selector(".restore")
        assert "log-probability" in tab.inner_text("#compare")


def test_a_masked_language_model_has_no_model_view(run, monkeypatch):
    model, tokenizer, config, origin = checkpoint.load_with_origin(run)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, task="masking"))
    monkeypatch.setattr(checkpoint, "load_with_origin", lambda *args: (model, tokenizer, config, origin))
    assert "got a masked language model" in load_page([run]).unavailable_reason


def test_words_of_a_vocabulary_of_affixes_begin_without_a_dot():
    """The tokenizer has tokens for words, for endings ("~") and for labels; all have different names."""
    sentences = [text.split() for text in ("the cat sees the dog", "the dog hears the cat")] * 2
    source = WordTokenizer(affix_spec(sentences, SPECIALS, 150))
    tokenizer = PairTokenizer(source, make_label_tokenizer("labels", ["DT", "NN"]))
    shown = token_texts(tokenizer, source.encode("the cat"), "source")
    assert shown == ["the", "·~the", "cat", "·~cat"]
    every = token_texts(tokenizer, list(range(source.vocab_size)), "source")
    assert len({*every}) == len(every)
    assert token_texts(tokenizer, [4, 5]) == ["DT", "NN"]


def test_no_serious_accessibility_violation_and_no_sideways_scrolling(tab, pages):
    import axe_playwright_python

    axe = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text("utf-8")
    with served(pages["tagging"], tab=tab) as address:
        view(tab, address, "model")
        tab.wait_for_selector("#model[data-flow]", state="attached")
        tab.evaluate(axe)
        tab.click("[data-block=output]")
        until(tab, "document.querySelector('#model .opened').dataset.block === 'output'")
        for name in ("model", "translate"):
            turn_to(tab, name)
            for scheme in ("light", "dark"):
                tab.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                violations = tab.evaluate(
                    "axe.run().then(r => r.violations.map(v => [v.impact, v.id, v.nodes[0].html]))"
                )
                assert [one for one in violations if one[0] in ("serious", "critical")] == [], (name, scheme)
            for width in (320, 390, 768):
                tab.set_viewport_size({"width": width, "height": 844})
                until(tab, f"document.documentElement.scrollWidth <= {width}")
            tab.set_viewport_size({"width": 1100, "height": 800})
