"""The page's views of language models; see conftest.py."""

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from models import TransformerConfig
from tests.helpers.pages import served, turn_to, until, view
from train import RunConfig, UserError
from train.tasks.language import continue_text
from train.text.plain import PlainTokenizer
from train.viewer.examples import validation_sentences
from train.viewer.inspection import inspect_text, token_texts
from train.viewer.server import Page
from train.viewer.trace import Trace

TEXT = "to be, or not to be:\nthat is the question"


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """The page of a small untrained language model of characters."""
    file = tmp_path_factory.mktemp("text") / "train.txt"
    file.write_text(TEXT * 3, encoding="utf-8")
    tokenizer = PlainTokenizer.from_files([file], "characters", 64)
    sizes = {"n_layers": 2, "n_heads": 2, "d_model": 16, "d_ff": 32, "norm_placement": "pre", "positions": "rotary"}
    model = TransformerConfig(vocab_size=tokenizer.vocab_size, architecture="decoder", **sizes).build(seed=3).eval()
    for p in model.parameters():
        p.data *= 2  # distributions that are far from uniform
    config = RunConfig.from_dict({"data": {"task": "language", "train_text": str(file), "valid_text": str(file)}})
    return Page({}, model, tokenizer, config, examples=validation_sentences(file.parent, tokenizer, config))


def ask(page, name, **query):
    answer = getattr(page.sentences, name)(query, lambda item: None)
    json.dumps(answer, allow_nan=False)
    return answer


def test_reading_gives_the_log_probability_of_the_text(reader):
    answer = ask(reader, "translate", text="not to be")
    ids = np.array([reader.tokenizer.encode("not to be")])
    loss = reader.model.loss(ids, label_smoothing=0.0).item()
    assert answer["log_probability"] == pytest.approx(-loss * (ids.shape[1] - 1), rel=1e-5)
    assert (
        answer["source"] == token_texts(reader.tokenizer, ids[0].tolist()) and answer["target"] == answer["source"][1:]
    )
    assert "␣" in answer["source"] and answer["lens"][-1] == [
        {"label": options[0]["label"], "p": pytest.approx(options[0]["p"])} for options in answer["alternatives"]
    ]
    flow = ask(reader, "overview", translation=answer["translation"])
    assert flow["loss"] == pytest.approx(loss, rel=1e-5)


def test_nan_in_the_weights_is_reported(reader):
    weight = next(reader.model.parameters())
    values = weight.data.copy()
    weight.data[...] = np.nan
    try:
        for question in ("translate", "next_token"):
            with pytest.raises(FloatingPointError, match="expected finite logits; got NaN or infinity"):
                ask(reader, question, text="to be, to be")
    finally:
        weight.data[...] = values


def test_each_layers_prediction_is_that_of_its_output(reader):
    inspection = inspect_text(reader.model, reader.tokenizer, "to be or not")
    trace = Trace(reader.model, [reader.tokenizer.encode("to be or not")])
    first = reader.model.norm(
        type(reader.model.embedding.weight)(trace.output("layers.0.feed_forward_residual")[0][:-1])
    )
    np.testing.assert_array_equal(inspection.lens_tokens[0], reader.model.logits(first).data.argmax(axis=1))


def test_every_block_reads_all_tokens_of_a_text(reader):
    """The last token is read too: it has no target, but its prediction is that of `next_token`."""
    answer = ask(reader, "translate", text="to be or not")
    query = {"translation": answer["translation"]}
    n = len(answer["source"])
    flow = ask(reader, "overview", **query)
    assert {name: block["shape"][0] for name, block in flow["blocks"].items()} == dict.fromkeys(flow["blocks"], n)
    weights = ask(reader, "block", block="layers.0.attention", **query)["matrices"][6]
    assert weights["rows"] == weights["columns"] == answer["source"]
    output = ask(reader, "block", block="output", **query)
    assert output["targets"] == [*answer["target"], "(next token)"]
    p = {token["label"]: token["p"] for token in ask(reader, "next_token", text="to be or not")["tokens"]}
    for label, chance, is_target in output["bars"][-1]:
        assert not is_target and (not p.get(label) or chance == pytest.approx(p[label], rel=0.01))  # no special token
    logits = next(one for one in output["matrices"] if one["title"] == "logits")
    gradient = np.frombuffer(base64.b64decode(logits["gradient"]), "<f4").reshape(logits["shape"])
    assert not gradient[-1].any() and gradient[:-1].any(axis=1).all()


@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.5}, {"temperature": 0.5, "top_k": 4, "top_p": 0.9}])
def test_the_next_token_is_distributed_as_generate_samples_it(reader, options):
    """Compare with an independent computation of temperature, top-k and top-p."""
    answer = ask(reader, "next_token", text="to be", **options)
    shown = [token["p"] for token in answer["tokens"]]
    p = np.sort(np.array(shown))[::-1] ** (1 / options.get("temperature", 1))
    p[options.get("top_k") or len(p) :] = 0
    p /= p.sum()
    before = np.cumsum(p) - p
    p[before >= options.get("top_p", 1)] = 0
    np.testing.assert_allclose([token["sampled"] for token in answer["tokens"]], p / p.sum(), atol=1e-6)
    assert answer["n_candidates"] == (p > 0).sum() and sum(shown) == pytest.approx(1, abs=1e-6)


def test_a_continuation_is_that_of_generate(reader):
    options = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "seed": 4}
    answer = ask(reader, "next_token", text="to be", tokens=12, **options)
    window = reader.config.data.max_length
    assert answer["continuation"] == continue_text(reader.model, reader.tokenizer, "to be", 12, window, **options)


def test_a_suppressed_token_is_neither_shown_nor_sampled(reader, monkeypatch):
    first, second, *_ = ask(reader, "next_token", text="to be")["tokens"]
    config = reader.model.config
    token = token_texts(reader.tokenizer, range(config.vocab_size)).index(first["label"])
    monkeypatch.setattr(reader.model, "config", replace(config, suppressed_ids=(token,)))
    shown = ask(reader, "next_token", text="to be")["tokens"]
    assert shown[0]["label"] == second["label"] and sum(one["p"] for one in shown) == pytest.approx(1, abs=1e-6)
    assert first["label"] not in [one["label"] for one in shown if one["p"]]


@pytest.mark.parametrize(
    "query",
    [{"temperature": -1}, {"temperature": "hot"}, {"top_k": 1.5}, {"top_p": 0}, {"tokens": 10**6},
     {"seed": -1, "tokens": 1}, {"text": 3}, {"temperature": 1e400}, {"top_k": True}],
)  # fmt: skip
def test_invalid_options_of_sampling_give_an_error(reader, query):
    with pytest.raises(UserError, match="expected"):
        ask(reader, "next_token", **{"text": "to be", **query})


def test_the_distribution_is_redrawn_as_the_sliders_move(tab, reader):
    with served(reader, tab=tab) as address:
        view(tab, address, "")
        tab.wait_for_selector("#model[data-flow]", state="attached")
        assert tab.inner_text("#model h3 >> nth=0") == "Decoder only"
        order = "[...document.querySelector('.stack').children].map((part) => part.className.split(' ')[0])"
        for layer, parts in enumerate((["others", "layer"], ["layer", "others"])):
            tab.click(f"[aria-label='Layer shown'] button >> nth={layer}")
            assert tab.inner_text("#model .others") == f"layer {1 - layer}"
            assert tab.evaluate(order) == ["", "chips", "block", "block", *parts, "block", "chips"]
        turn_to(tab, "translate")
        assert tab.title() == "Generate – npx-transformer" and tab.locator("nav a[href='#beam']").count() == 0
        until(tab, "document.querySelectorAll('.next li').length > 5")
        tab.focus("#top_k")
        tab.keyboard.press("ArrowRight")
        tab.keyboard.press("ArrowRight")
        until(tab, "document.querySelectorAll('.next li:not(.excluded)').length === 2")
        before = tab.input_value("#text")
        tab.click("text=Generate 50 tokens")
        until(tab, f"document.querySelectorAll('[aria-label=source] .token').length === {len(before) + 50}")
        canvas = "document.querySelector('[data-kind=text] canvas:not(.hatched)')"
        pixels = f"{canvas}.getContext('2d').getImageData(1, 0, 1, 2).data"
        masked, weight = np.reshape(tab.evaluate(f"[...{pixels}]"), (2, 4)).tolist()
        assert masked == [0, 0, 0, 0] != weight and "masked" in tab.inner_text("#result h3 .legend")
        tab.hover("[data-head='text.1.0']", position={"x": 30, "y": 1})
        assert "with weight 0 (masked)" in tab.inner_text(".kind .read")
        tab.click("[data-head='text.1.0']")
        tab.wait_for_selector("#head .matrix")
        tab.click("#switch")
        tab.wait_for_selector(".restore")
        assert re.fullmatch(r"loss \d\.\d+ → \d\.\d+ nats per token\.", tab.inner_text("#compare"))
