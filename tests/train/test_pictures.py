"""Pictures (train/viewer, `draw`, `reproduce figures`): deterministic bytes, the engine's numbers, alternative text."""

import dataclasses
import os
import re
import tracemalloc
import types
import xml.etree.ElementTree as xml
from itertools import combinations

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

import npx
import train.viewer.curves as curves_module
import train.viewer.memory as memory_module
from autograd.memory import MemorySample
from models import Transformer, TransformerConfig
from models.registry import ARCHITECTURES
from models.search import PrefixConstrainedModel, beam_search
from models.search.tree import CUT, FINISHED, KEPT, Candidate, SearchTree
from tests.laws.test_search import EOS, MarkovModel
from train.cli import main
from train.run.checkpoint import load_model
from train.run.folder import RunFolder
from train.tasks import TASKS
from train.text.batches import Batches
from train.text.corpus import PairCorpus
from train.text.pair_tokenizer import PairTokenizer
from train.viewer import heads, picture
from train.viewer.beams import wrap
from train.viewer.curves import draw_curves, runs_by_name, series
from train.viewer.heads import draw_figures, mosaic
from train.viewer.inspection import (
    Head,
    SentenceInspection,
    ablate_heads,
    all_heads,
    inspect,
    masks_of,
    source_ids,
    token_texts,
    translate,
)
from train.viewer.memory import draw_memory, measure_memory
from train.viewer.roles import MEASURES, EvaluationText, draw_roles, measure_roles
from train.viewer.sentences import Sentences

SENTENCE = "one two $three$ four"  # dollar signs must not become a formula


@pytest.fixture(scope="module")
def loaded(uninterrupted):
    return load_model(uninterrupted)


def drawn(tmp_path, run, *arguments, name="a.svg"):
    out = tmp_path / name
    assert main(["draw", str(run), *arguments, "--out", str(out)]) == 0
    return out.read_bytes(), out.with_name(f"{out.stem}.alt.txt").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("heads", "--input", SENTENCE), "Each row of a head sums to 1"),
        (("beam", "--input", SENTENCE), "The search ended"),
        (("curves",), "loss (nats per token"),
        (("memory",), "peak"),
        (("roles", "--sentences", "3"), "nats per token, BLEU"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_the_same_input_gives_the_same_bytes_and_names_its_source(tmp_path, uninterrupted, arguments, message):
    svg, alt = drawn(tmp_path, uninterrupted, *arguments)
    assert (svg, alt) == drawn(tmp_path, uninterrupted, *arguments, name="b.svg")
    root = xml.fromstring(svg)
    words = " ".join(root.itertext())
    title = alt.split("\n")[0]
    assert message in alt and title in words and "Drawn from run" in alt
    assert uninterrupted.name in words and not re.search(r"20\d\d-\d\d-\d\d", words)  # no date
    assert ("SHA-256 of state" in words) == (arguments[0] != "curves")


def test_a_png_has_the_same_bytes_and_its_source(tmp_path, uninterrupted):
    png, _ = drawn(tmp_path, uninterrupted, "heads", "--input", SENTENCE, "--kind", "cross", name="a.png")
    assert png == drawn(tmp_path, uninterrupted, "heads", "--input", SENTENCE, "--kind", "cross", name="b.png")[0]
    with PIL.Image.open(tmp_path / "a.png") as image:
        assert "SHA-256 of state" in image.info["Source"] and SENTENCE in image.info["Title"]


def test_curves_of_two_runs_tell_them_apart(tmp_path, uninterrupted):
    other = tmp_path / "other"
    other.mkdir()
    (other / "metrics.jsonl").write_bytes(RunFolder(uninterrupted).metrics_file.read_bytes())
    _, alt = drawn(tmp_path, uninterrupted, "curves", "--also", str(other))
    same_name = runs_by_name([uninterrupted, tmp_path / "other" / uninterrupted.name, uninterrupted])
    assert len(same_name) == 2 and all(name.endswith(f"/{uninterrupted.name}") for name in same_name)
    assert not any(name.startswith("/") for name in same_name)
    assert [*runs_by_name([tmp_path / "run", tmp_path / "run" / "run", tmp_path / "x" / ".." / "run"])] == [
        "run",
        "run/run",
    ]
    last = RunFolder(uninterrupted).metrics()[-1]
    legend = series(RunFolder(uninterrupted).metrics())
    draw_curves({"_run": legend, "other": legend}, tmp_path / "b.svg", "metrics")
    words = " ".join(xml.parse(tmp_path / "b.svg").getroot().itertext())
    assert "_run, training" in words and "other, validation" in words
    assert "other, validation perplexity, valid: first" in alt and f"at update {last['step']}" in alt


def test_curves_leave_out_values_that_no_axis_can_show(tmp_path):
    entries = [{"kind": "train", "step": step, "loss": x, "lr": x / 1e200} for step, x in ((1, -1e308), (2, 1e308))]
    alt = draw_curves({"run": series(entries)}, tmp_path / "a.svg", "metrics").read_text()
    assert "learning rate" in alt and "loss" not in alt


@pytest.mark.parametrize("kind", ["a pipe", "an empty folder"])
def test_curves_of_something_else_name_it(tmp_path, capsys, kind):
    (run := tmp_path / "run").mkdir()
    (run / "config.toml").touch()
    os.mkfifo(run / "metrics.jsonl") if kind == "a pipe" else (run / "metrics.jsonl").mkdir()
    assert main(["draw", str(run), "curves", "--out", str(tmp_path / "a.svg")]) == 2
    got = kind.replace("an empty", "a")
    assert capsys.readouterr().err.endswith(f"{run}/metrics.jsonl: expected a file; got {got}; try removing it\n")


def test_the_papers_figures(tmp_path, uninterrupted, capsys):
    out = tmp_path / "figures"
    given = ["reproduce", "figures", "--model", str(uninterrupted), "--input", "one two three", "--out", str(out)]
    assert main(given) == 0
    files = [out / f"figure{n}.svg" for n in (3, 4, 5)]
    assert capsys.readouterr().out.split() == [str(file) for file in files]
    before = [file.read_bytes() for file in files]
    (tmp_path / "victim").write_text("mine")
    files[0].unlink()
    files[0].symlink_to(tmp_path / "victim")
    assert main(given) == 0 and before == [file.read_bytes() for file in files]
    assert (tmp_path / "victim").read_text() == "mine" and not files[0].is_symlink()
    assert all(
        "encoder self-attention, layer 0 (counted from 0)" in file.with_suffix(".alt.txt").read_text() for file in files
    )
    (tmp_path / "figure3.svg").write_text("mine")
    assert main([*given[:-1], str(tmp_path)]) == 2
    assert (
        "expected a new folder, or an earlier output folder of this command; got a folder with other files"
        in capsys.readouterr().err
    )
    assert (tmp_path / "figure3.svg").read_text() == "mine"


@pytest.mark.parametrize("mine", ["", "my notes\n\nDear diary\n", "Drawn from life\n\nand more"])
def test_a_users_file_is_not_overwritten_by_alternative_text(tmp_path, uninterrupted, capsys, mine):
    (tmp_path / "note.alt.txt").write_text(mine)
    assert main(["draw", str(uninterrupted), "curves", "--out", str(tmp_path / "note.png")]) == 2
    assert (
        "note.alt.txt: expected a file written with an earlier picture; got another file, which would be lost; try"
        in capsys.readouterr().err
    )
    assert [path.read_text() for path in tmp_path.iterdir()] == [mine]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["hedas", "--out", "a.svg"],
            "expected RUN and one of heads, beam, curves, memory, roles, confusion; got 'hedas'; try heads",
        ),
        (["heads", "--out", "a.svg"], "expected a sentence for heads"),
        (["heads", "--input", "one", "--out", "a.jpg"], "expected a file name ending in .png or .svg; got '.jpg'"),
        (["heads", "--input", "one", "--out", "none/a.svg"], "got a path in none, which is not a folder"),
        (["heads", "--input", "one " * 300, "--out", "a.svg"], "expected 1 to 255 tokens; got"),
        (["heads", "--input", "one", "--kind", "corss", "--out", "a.svg"], "got 'corss'; try cross"),
        (
            ["memory", "--input", "one", "--out", "a.svg"],
            "--input applies only to heads and beam; got memory; try without --input",
        ),
        (["beam", "--input", "\u200b\ud800", "--out", "a.svg"], "expected UTF-8"),
        (
            ["memory", "--beam-size", "2", "--out", "a.svg"],
            "--beam-size applies only to heads and beam; got memory; try without --beam-size",
        ),
    ],
)
def test_user_errors_give_a_one_line_error(uninterrupted, capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(["draw", str(uninterrupted), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and "; try " in error
    assert not any(tmp_path.iterdir())


def test_without_matplotlib_the_error_says_what_to_install(uninterrupted, capsys, monkeypatch):
    monkeypatch.setattr(picture.importlib.util, "find_spec", lambda name: None)
    assert main(["draw", str(uninterrupted), "curves", "--out", "a.svg"]) == 2
    assert 'pip install "npx-transformer[draw]"' in capsys.readouterr().err


def test_a_mosaic_has_every_weight_at_its_position():
    weights = np.arange(2 * 3 * 4 * 5, dtype=float).reshape(2, 3, 4, 5)
    tiled = mosaic(weights, None)
    assert tiled.shape == (2 * 5 - 1, 3 * 6 - 1)
    for layer, head, row, column in np.ndindex(*weights.shape):
        assert tiled[layer * 5 + row, head * 6 + column] == weights[layer, head, row, column]
    square = mosaic(weights[..., :4], np.tri(4, dtype=bool))
    assert np.isnan(square[0, 1]) and square[3, 0] == weights[0, 0, 3, 0]


@pytest.mark.parametrize(
    ("architecture", "kind", "window"),
    [("encoder", "text", None), ("decoder", "text", None), ("decoder", "text", 2), ("encoder_decoder", "decoder", 2)],
)
def test_every_weight_that_is_not_0_is_drawn(architecture, kind, window):
    """The mask of a picture is the mask that the model applies."""
    c = {"vocab_size": 9, "d_model": 8, "n_heads": 2, "d_ff": 8, "n_layers": 1, "architecture": architecture}
    model = ARCHITECTURES[architecture](TransformerConfig(**c, attention_window=window))
    ids = np.array([[1, 5, 6, 7]])
    arguments = (ids, ids, kind) if kind == "decoder" else (ids,)
    maps = np.stack([layer[0] for layer in model.attention_maps(*arguments)])
    mask = masks_of(model, {kind: maps})[kind]
    np.testing.assert_array_equal(maps > 0, np.broadcast_to(True if mask is None else mask, maps.shape))
    assert (mask is None) == (architecture == "encoder")


# The numbers behind the pictures


def test_an_inspection_has_the_engines_numbers(loaded):
    model, tokenizer, _ = loaded
    src = source_ids(model, tokenizer, "one two three")
    tokens = translate(model, src, {"beam_size": 2, "max_extra_tokens": 5})[0].tokens
    inspection = inspect(model, tokenizer, src, tokens)
    ids, out = np.array([src]), np.array([[1, *tokens]])
    for kind, maps in inspection.maps.items():
        expected = np.stack([layer[0] for layer in model.attention_maps(ids, out, kind)])
        np.testing.assert_array_equal(maps, expected)
        rows, columns = inspection.axis_labels(kind)
        assert maps.shape[2:] == (len(rows), len(columns))
    logits = model(ids, out).data[0]
    assert (inspection.log_probabilities.argmax(axis=1) == logits.argmax(axis=1)).all()
    np.testing.assert_allclose(np.exp(inspection.log_probabilities).sum(axis=1), 1, rtol=1e-12)
    assert (inspection.lens_tokens[-1] == logits.argmax(axis=1)).all()


def test_an_output_that_is_cut_off_has_no_end(loaded):
    model, tokenizer, config = loaded
    config = dataclasses.replace(config, search=dataclasses.replace(config.search, max_extra_tokens=1))
    sentences = Sentences(model, tokenizer, config)
    answer = sentences.translate({"text": "one two three", "beam_size": 1}, lambda item: None)
    assert not answer["finished"] and "</s>" not in answer["target"]
    assert np.log(answer["p"]).sum() == pytest.approx(answer["log_probability"], rel=1e-6)
    loss = sentences.trace(answer).loss
    assert loss == pytest.approx(-answer["log_probability"] / len(answer["target"]), rel=1e-5)


@given(seed=st.integers(0, 1000), norm=st.sampled_from(["pre", "post"]))
@settings(max_examples=10)
def test_an_ablated_head_contributes_nothing_and_is_restored(seed, norm):
    model = Transformer(
        TransformerConfig(20, d_model=12, d_ff=16, n_heads=3, n_layers=2, norm_placement=norm), seed
    ).eval()
    src, tgt = np.array([[5, 6, 7, 2]]), np.array([[1, 8, 9]])
    before = model(src, tgt).data.copy()
    head = all_heads(model)[seed % 18]
    attention = model.attention_layers()[head.kind][head.layer]
    other = attention.attention_weights  # while ablated, the head's values must not affect the output
    with ablate_heads(model, [head]):
        ablated = model(src, tgt).data.copy()
        size = attention.d_v
        values = (attention.query_key_value if head.kind != "cross" else attention.key_value).weight.data
        columns = slice(values.shape[1] - size * (3 - head.head), values.shape[1] - size * (2 - head.head))
        original = values[:, columns].copy()
        values[:, columns] *= 7
        np.testing.assert_array_equal(model(src, tgt).data, ablated)
        values[:, columns] = original
    assert np.abs(before - ablated).max() > 1e-6 and other == attention.attention_weights
    np.testing.assert_array_equal(model(src, tgt).data, before)


def test_heads_are_restored_after_an_error(loaded):
    model, _, _ = loaded
    before = model.state_dict()
    with pytest.raises(RuntimeError), ablate_heads(model, all_heads(model)):
        raise RuntimeError
    assert all((before[name] == array).all() for name, array in model.state_dict().items())


def test_labels_show_where_words_begin_and_differ_for_different_tokens(loaded):
    _, tokenizer, _ = loaded
    ids = tokenizer.encode("one xq \u00fc")
    names = token_texts(tokenizer, [*ids, tokenizer.eos_id])
    assert names[-1] == "</s>" and "\u00b7q" in names and {"<0xC3>", "<0xBC>"} <= {*names}
    starts = [name for name in names if not name.startswith(("\u00b7", "<"))]
    assert len(starts) == 3  # words
    assert len({*token_texts(tokenizer, range(tokenizer.vocab_size))}) == tokenizer.vocab_size


@pytest.mark.parametrize("shared", [True, False])
def test_labels_of_a_pair_of_tokenizers_are_those_of_the_side(loaded, shared):
    """Imported translation models have two tokenizers, usually with one vocabulary."""
    _, tokenizer, _ = loaded
    pair = PairTokenizer(tokenizer, tokenizer, shared=shared)
    for side in ("source", "target"):
        ids = range(tokenizer.vocab_size)
        assert token_texts(pair, ids, side) == token_texts(tokenizer, ids)


@given(
    seed=st.integers(0, 500), beam_size=st.integers(1, 4), coarse=st.booleans(),
    length_penalty=st.sampled_from([0.0, 0.6, 1.0]), end_bias=st.sampled_from([-3.0, 0.0, 2.0]),
)  # fmt: skip
@settings(max_examples=40)
def test_the_leaves_of_a_tree_are_exactly_the_hypotheses(seed, beam_size, coarse, length_penalty, end_bias):
    model = MarkovModel(6, seed, coarse, end_bias)
    tree = SearchTree()
    src = np.array([[3, 4, EOS]])
    search_options = {
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        "max_extra_tokens": 3,
        "n_best": beam_size,
    }
    (best,) = beam_search(model, src, **search_options, observe=tree)
    assert beam_search(model, src, **search_options) == [best]  # observing changes nothing
    leaves = {
        (tuple(tree.tokens(i)[:-1] if c.fate == FINISHED else tree.tokens(i)), c.score, c.log_probability)
        for i, c in enumerate(tree.candidates)
        if c.fate in (FINISHED, CUT)
    }
    assert {(tuple(h.tokens), h.score, h.log_probability) for h in best} <= leaves
    for c in tree.candidates:
        parent = tree.candidates[c.parent] if c.parent >= 0 else None
        assert c.length == (parent.length + 1 if parent else 1)
        assert parent is None or (parent.fate == KEPT and parent.log_probability >= c.log_probability)
    by_step = [
        [c for c in tree.candidates if c.length == n + 1 and c.fate != "dropped"] for n in range(len(tree.bounds))
    ]
    assert all(1 <= len(step) <= beam_size for step in by_step)
    assert not tree.stop_reason.startswith("the search has not")


@given(seed=st.integers(0, 500), prefix=st.lists(st.integers(3, 5), max_size=3))
@settings(max_examples=20)
def test_a_forced_prefix_keeps_the_models_log_probability(seed, prefix):
    model = MarkovModel(6, seed)
    src = np.array([[3, 4, EOS]])
    (best,) = beam_search(PrefixConstrainedModel(model, [prefix]), src, beam_size=3, max_extra_tokens=6, n_best=3)
    everything = beam_search(model, src, beam_size=200, max_extra_tokens=6, n_best=200)[0]
    log_probabilities = {tuple(h.tokens): h.log_probability for h in everything}
    assert all(h.tokens[: len(prefix)] == prefix for h in best)
    for h in best:
        if tuple(h.tokens) in log_probabilities and h.finished:
            assert abs(log_probabilities[tuple(h.tokens)] - h.log_probability) < 1e-5


def test_peak_memory_agrees_with_tracemalloc():
    config = TransformerConfig(50, d_model=64, d_ff=128, n_heads=4, n_layers=2, dropout=0.0)
    model = Transformer(config)
    rows = np.random.default_rng(1).integers(3, 50, (24, 40))
    corpus = PairCorpus.from_pairs([(row[:39].tolist(), row[:39].tolist()) for row in rows])
    task = TASKS["translation"]
    batches = Batches(corpus, 1000, 1)
    batch = batches.batch(batches.epoch_batches(1)[0])
    settings = type("Table", (), {"label_smoothing": 0.1, "smoothing_classes": "all", "seed": 1})
    memory = measure_memory(task, model, batch, settings)
    tracemalloc.start()
    try:
        with npx.keyed(1, 1):
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            model.train().loss(
                *task.loss_inputs(batch), label_smoothing=0.1, smoothing_classes="all", loss_normalizer=1.0
            ).backward()
            peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert abs(memory.peak.live - peak) < 0.1 * peak


def test_a_head_that_attends_one_back_is_positional(loaded):
    model, tokenizer, config = loaded
    words = PairCorpus.from_pairs([(tokenizer.encode("one two three"), tokenizer.encode("eins zwei"))] * 2)
    evaluation_text = EvaluationText(TASKS["translation"], words, config, tokenizer, 2)
    original = model.inspect

    def attend_back(src, tgt, *kinds):
        inspection = original(src, tgt, *kinds)
        inspection.maps["encoder"][0][:, 0] = np.eye(src.shape[1], k=-1)
        return inspection

    model.inspect = attend_back
    try:
        baseline, roles = measure_roles(model, evaluation_text)
    finally:
        del model.inspect
    of = {str(role.head): role for role in roles}
    assert [str(head) for head in all_heads(model)] == list(of) and set(of["cross.0.1"].measures) == set(MEASURES)
    length = len(source_ids(model, tokenizer, "one two three"))
    assert of[str(Head("encoder", 0, 0))].measures["before"] == pytest.approx((length - 1) / length)
    assert baseline == evaluation_text.evaluate(model)[:2]


STEPS = st.lists(st.sampled_from([KEPT, FINISHED, "dropped"]), min_size=1, max_size=5)


@given(fates=st.lists(STEPS, min_size=1, max_size=12), most=st.integers(2, 5))
def test_a_wrapped_beam_has_every_candidate_and_repeats_the_live_ones(fates, most):
    tree = SearchTree()
    steps = []
    for n, step in enumerate(fates):
        steps.append([len(tree.candidates) + i for i in range(len(step))])
        tree.candidates += [Candidate(n + 1, -1, 3, 0.0, 0.0, fate) for fate in step]
    bands = wrap(steps, tree, most)
    assert all(1 <= len(band) <= most for band in bands)
    repeated = [next(iter(band.items())) for band in bands[1:]]
    assert all(band == [i for i in steps[n] if tree.candidates[i].fate == KEPT] for n, band in repeated)
    shown = [*bands[0].items(), *(item for band in bands[1:] for item in [*band.items()][1:])]
    assert shown == list(enumerate(steps))


def test_one_point_has_one_tick(tmp_path):
    curves = {"run": series([{"kind": "train", "step": 50, "loss": 8.1, "lr": 1e-4, "gradient_norm": 0.95}])}
    draw_curves(curves, tmp_path / "a.svg", "metrics")
    words = list(xml.fromstring((tmp_path / "a.svg").read_text("utf-8")).itertext())
    assert words.count("50") == 3 and {"8.1", "0.0001", "0.95"} <= set(words)
    numbers = [word for word in words if re.fullmatch(r"[\d.\u2212]+", word.strip())]
    assert len(numbers) == 6


@pytest.mark.parametrize("kind", ["text", "decoder"])
@pytest.mark.parametrize("length", [1, 2, 3, 9])
def test_the_labels_of_heads_fit_into_the_picture(tmp_path, monkeypatch, kind, length):
    """Labels fit even for short sentences, whose matrices are smaller than the titles and the color bar."""
    figures = []
    tokens = ["Tom"] * length
    monkeypatch.setattr(heads, "write_picture", lambda figure, *_: figures.append(figure))
    maps = {kind: np.full((2, 4, length, length), 1 / length)}
    inspection = SentenceInspection(tokens, tokens, tokens, maps, {kind: None}, None, None, None)
    heads.draw_heads(inspection, "Tom", tmp_path / "a.svg", "nothing", [kind])
    (figure,) = figures
    figure.draw_without_rendering()
    labels = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    boxes = {(text.get_text(), i): text.get_window_extent() for i, text in enumerate(labels)}
    assert {"1.0", "0.0", "weight", "head 3", "layer 1", "Tom"} <= {name for name, _ in boxes}
    for name, box in boxes.items():
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1, name
        assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1, name
    assert not [(a, b) for a, b in combinations(boxes, 2) if boxes[a].overlaps(boxes[b])]


def test_figure_5_has_the_most_confident_heads(tmp_path):
    maps = np.full((1, 3, 2, 2), 0.5)
    maps[0, 1] = [[0.0, 1.0], [1.0, 0.0]]  # the most confident head is also the one that attends away from the word
    maps[0, 2] = [[0.9, 0.1], [0.1, 0.9]]
    inspection = SentenceInspection(["a", "end"], [], [], {"encoder": maps}, {"encoder": None}, None, None, None)
    files = draw_figures(inspection, "a", 0, tmp_path, "nothing")
    lines = files[2].with_suffix(".alt.txt").read_text("utf-8").splitlines()
    assert any(line.startswith("a: head 1: end 1.00") and "head 2" in line for line in lines)


def test_roles_use_the_score_of_the_validations(tmp_path, loaded):
    model, tokenizer, config = loaded
    corpus = PairCorpus.from_pairs([(tokenizer.encode("one"), tokenizer.encode("eins"))] * 2)
    task = TASKS["translation"]
    assert EvaluationText(task, corpus, config, tokenizer, 2).score_name == "BLEU"
    without = dataclasses.replace(config, train=dataclasses.replace(config.train, validate_score=False))
    evaluation_text = EvaluationText(task, corpus, without, tokenizer, 2)
    assert evaluation_text.score_name == "" and len(evaluation_text.evaluate(model)[2]) == 2
    draw_roles(*measure_roles(model, evaluation_text), evaluation_text, tmp_path / "a.svg", "nothing")
    assert "BLEU" not in (tmp_path / "a.alt.txt").read_text("utf-8")


def test_labels_of_a_picture_neither_overlap_nor_leave_it(tmp_path, monkeypatch):
    """Check the ticks of a logarithmic axis and the titles of the memory picture."""
    figures = []
    for module in (curves_module, memory_module):
        monkeypatch.setattr(module, "write_picture", lambda figure, *rest: figures.append(figure))
    norms = [(step, 2.2 * 0.97**step) for step in range(1, 120)]
    draw_curves({"run": {"gradient_norm": {"train": norms}}}, tmp_path / "a.svg", "metrics")
    samples = [MemorySample("forward", "linear", "encoder.0", n * 2**20, 0) for n in (1, 2)]
    memory = types.SimpleNamespace(samples=samples, peak=samples[1], by_layer=lambda: {"a" * 30: 1})
    draw_memory(memory, "1 pair", tmp_path / "b.svg", "metrics")
    for figure in figures:
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw(renderer)
        for axis in figure.axes:
            ticks = [*axis.yaxis.get_ticklabels(which="both")]
            boxes = sorted((t.get_window_extent(renderer) for t in ticks if t.get_text()), key=lambda box: box.y0)
            assert all(low.y1 <= high.y0 + 1 for low, high in zip(boxes, boxes[1:], strict=False))
            for title in (axis.title, axis._left_title, axis._right_title):
                assert title.get_window_extent(renderer).x1 <= figure.bbox.x1
    assert "log scale" in figures[0].axes[0].get_ylabel()
