"""Masked language models, classifiers and taggers: their training, scores and commands."""

import json
import re
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import TransformerConfig
from tests.helpers.sentences import NOUNS, SENTENCES, VERBS
from tests.helpers.trainings import outcome
from train.cli import main
from train.errors import UserError
from train.learn.optimizer import Adam
from train.metrics.classification import LabelScores
from train.run.checkpoint import load_model
from train.tasks import TASKS, line_predictions
from train.tasks.line_predictions import embed_lines, label_lines
from train.text.tokenizer import Tokenizer

TAG_OF = {"the": "DT"} | dict.fromkeys(NOUNS, "NN") | dict.fromkeys(VERBS, "VB")
SMALL = """
[model]
architecture = "encoder"
d_model = 16
d_ff = 16
n_heads = 2
n_layers = 1
norm = "pre"
positions = "learned"
max_positions = 32
token_types = 2
pooler = true
dropout = 0.1
[data]
tokenizer = "affixes"
vocab_size = 150
max_length = 32
[train]
batch_tokens = 120
max_steps = 12
schedule = "constant"
peak_lr = 0.01
warmup_steps = 1
label_smoothing = 0.0
validate_every = 6
checkpoint_every = 6
"""


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_label_scores_follow_their_definitions(pairs):
    gold, predicted = (np.array(side) for side in zip(*pairs, strict=True))
    scores = LabelScores.of("abcd", gold, predicted)
    f1 = []
    assert scores.accuracy == pytest.approx(100 * np.mean(gold == predicted))
    for i in range(4):
        hits, n_gold, n_predicted = (int(x.sum()) for x in ((gold == i) & (predicted == i), gold == i, predicted == i))
        precision, recall = hits / max(1, n_predicted), hits / max(1, n_gold)
        assert (scores.precision[i], scores.recall[i]) == pytest.approx((100 * precision, 100 * recall))
        expected = 200 * precision * recall / (precision + recall) if hits else 0.0
        assert scores.f1[i] == pytest.approx(expected)
        if n_gold or n_predicted:
            f1.append(expected)
    assert scores.macro_f1 == pytest.approx(np.mean(f1))
    assert sum(row["count"] for row in scores.as_dict()["labels"].values()) == len(pairs)


@pytest.mark.parametrize("kind", ["masked", "tokens", "texts"])
def test_ten_sentences_are_memorized(kind):
    rng = np.random.default_rng(1)
    ids = np.concatenate([np.ones((10, 1), int), rng.integers(4, 20, (10, 5)), np.full((10, 1), 2)], axis=1)
    labels = np.zeros_like(ids)
    options = {"src_vocab_size": 20}
    if kind == "masked":
        labels[:, 3] = ids[:, 3]
        ids[:, 3] = 3
        options = {}
    elif kind == "tokens":
        labels[:, 1:6] = rng.integers(4, 8, (10, 5))
    else:
        labels = rng.integers(4, 8, (10, 1))
        options = options | {"pooler": True}
    config = TransformerConfig(
        20 if kind == "masked" else 8, d_model=16, d_ff=32, n_heads=2, n_layers=1, dropout=0.0, norm_placement="pre",
        architecture="encoder", **options,
    )  # fmt: skip
    model = config.build(seed=1)
    adam = Adam(model)
    for _ in range(100):
        adam.flat.zero_grad()
        model.loss(ids, labels).backward()
        adam.step(0.01)
    gold, logits = model.label_logits(ids, labels)
    assert (logits.argmax(axis=1) == gold).all() and model.loss(ids, labels).item() < 0.1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with texts and runs of the three tasks."""
    folder = tmp_path_factory.mktemp("labels")
    (folder / "small.toml").write_text(SMALL)
    for name, part in (("train", SENTENCES[::2]), ("valid", SENTENCES[1::2])):
        tagged = ["".join(f"{word}\t{TAG_OF[word]}\n" for word in line.split()) for line in part]
        (folder / f"{name}.tags").write_text("\n".join(tagged))
        (folder / f"{name}.labeled").write_text("".join(f"{line.split()[2]}\t{line}\n" for line in part))
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in part))
    return folder


def train(folder, out, *options, texts):
    suffix, *names = texts
    parts = zip(names, ("train", "valid"), strict=True)
    files = [argument for name, part in parts for argument in (name, f"{folder}/{part}.{suffix}")]
    return main(["train", f"{folder}/small.toml", "--out", str(folder / out), "--quiet", *files, *options])


TEXTS = {
    "masking": ("txt", "--train-text", "--valid-text"),
    "classification": ("labeled", "--train-labeled", "--valid-labeled"),
    "tagging": ("tags", "--train-tagged", "--valid-tagged"),
}


@pytest.fixture(scope="module")
def runs(folder):
    """The runs: a masked language model, and a classifier and a tagger that start from it."""
    assert train(folder, "masking", "--set", "data.task=masking", texts=TEXTS["masking"]) == 0
    for task in ("classification", "tagging"):
        options = "--set", f"data.task={task}", "--init", str(folder / "masking"), "--set", "train.max_steps=30"
        assert train(folder, task, *options, texts=TEXTS[task]) == 0
    return folder


def test_a_run_starts_from_the_masked_model_and_is_validated_by_accuracy(runs, capfd):
    for task in ("classification", "tagging"):
        entries = [json.loads(line) for line in (runs / task / "metrics.jsonl").read_text().splitlines()]
        scores = [entry["accuracy"] for entry in entries if entry["kind"] == "valid"]
        assert len(scores) == 5 and max(scores) > 90
        assert (runs / task / "checkpoints" / "best").is_dir()
        assert main(["info", str(runs / task)]) == 0 and "accuracy  macro F1" in (text := capfd.readouterr().out)
        (sizes,) = re.findall(r"tokenizer    (\d labels, \d+ subwords), digest", text)
        assert f" parameters, {sizes} " in (runs / task / "log.txt").read_text()


@pytest.mark.parametrize("target", ["huggingface", "ctranslate2", "onnx"])
def test_the_formats_of_other_tasks_are_answered_with_safetensors(runs, target, tmp_path, capfd):
    for task in TEXTS:
        command = ["export", str(runs / task), "--out", str(tmp_path / task), "--to"]
        assert main([*command, target]) == 2
        expected = f" for --to {target}; got {TASKS[task].model_kind}; try --to safetensors\n"
        error = capfd.readouterr().err
        assert "expected a translation model" in error and error.endswith(expected)
        assert main([*command, "safetensors"]) == 0


def test_a_resumed_run_equals_an_uninterrupted_one(runs, folder):
    options = "--set", "data.task=masking"
    assert train(folder, "halves", *options, "--set", "train.max_steps=6", texts=TEXTS["masking"]) == 0
    assert main(["train", "--resume", "--out", str(folder / "halves"), "--quiet", "--set", "train.max_steps=12"]) == 0
    assert outcome(runs / "halves", 6) == outcome(runs / "masking", 6)


def test_the_projection_of_other_labels_is_not_copied(runs, folder, tmp_path, capfd):
    """The number of labels is the same, so all shapes agree."""
    (tmp_path / "small.toml").write_text(SMALL)
    for part in ("train", "valid"):
        (tmp_path / f"{part}.tags").write_text((folder / f"{part}.tags").read_text().replace("DT", "XX"))
    options = "--set", "data.task=tagging", "--init", str(runs / "tagging"), "--set", "train.max_steps=1"
    assert train(tmp_path, "all", *options, "--init-parameters", "*", texts=TEXTS["tagging"]) == 2
    error = capfd.readouterr().err
    problem = f"expected the labels of {runs / 'tagging'}, on which projection depends; got different ones; try"
    assert f'{problem} train.init_parameters = "' in error and error.count("\n") == 1
    patterns = re.search(r'init_parameters = "(.*)"$', error)[1]
    assert "projection" not in patterns and not (tmp_path / "all").exists()
    assert train(tmp_path, "new", *options, "--set", "model.n_heads=4", texts=TEXTS["tagging"]) == 2
    assert f'or train.init_parameters = "{patterns}" to copy them anyway\n' in capfd.readouterr().err
    assert train(tmp_path, "new", *options, "--init-parameters", patterns, texts=TEXTS["tagging"]) == 0


def test_classify_prints_labels_and_scores(runs, tmp_path, capfd):
    text = tmp_path / "texts"
    text.write_text(f"{SENTENCES[0]}\n{SENTENCES[4]}\n")
    command = ["classify", "--quiet", "--model"]
    assert main([*command, str(runs / "classification"), "--input", str(text), "--top", "2"]) == 0
    rows = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["sees", "hears"] and all(len(row) == 4 for row in rows)
    assert all(1 >= float(row[1]) >= float(row[3]) >= 0 for row in rows)
    assert main([*command, str(runs / "tagging"), "--input", str(text)]) == 0
    assert capfd.readouterr().out == "DT NN VB DT NN\n" * 2
    assert main([*command, str(runs / "tagging"), "--input", str(text), "--json"]) == 0
    first = json.loads(capfd.readouterr().out.splitlines()[0])
    assert first["words"] == SENTENCES[0].split() and len(first["probabilities"]) == 5
    assert main([*command, str(runs / "tagging"), "--gold", str(runs / "valid.tags")]) == 0
    report = capfd.readouterr().err.splitlines()
    assert report[0].startswith("accuracy (micro F1) ")
    gold = ["--gold", str(runs / "valid.tags"), "--output", str(tmp_path / "tags")]
    assert main([*command, str(runs / "tagging"), *gold]) == 0
    printed = capfd.readouterr()
    assert printed.out.splitlines() == report and not printed.err
    assert {line.split()[0] for line in report[2:]} == {"DT", "NN", "VB"}


def test_embed_writes_the_same_vectors_as_text_and_as_an_array(runs, tmp_path, capfd):
    text, array = tmp_path / "texts", tmp_path / "v.npy"
    text.write_text("".join(f"{line}\n" for line in SENTENCES[:5]))
    for run in ("masking", "tagging"):
        command = ["embed", "--quiet", "--model", str(runs / run), "--input", str(text)]
        for pooling in ("mean", "first"):
            assert main([*command, "--pooling", pooling, "--output", str(array)]) == 0
            assert main([*command, "--pooling", pooling]) == 0
            rows = [[float(x) for x in line.split(" ")] for line in capfd.readouterr().out.splitlines()]
            vectors = np.load(array)
            assert vectors.dtype == np.float32 and vectors.shape == (5, 16)
            assert np.allclose(vectors, rows, rtol=1e-5, atol=1e-6)
    assert main([*command, "--output", str(tmp_path / "v.npz")]) == 2 and not (tmp_path / "v.npz").exists()
    assert capfd.readouterr().err.endswith(f"; got .npz; try {array}\n")


def test_results_do_not_depend_on_the_batch(runs, monkeypatch):
    model, tokenizer, _ = load_model(runs / "tagging", "tagging")
    lines = [SENTENCES[0], "the cat", "likes", *SENTENCES[5:8]]
    together = list(label_lines(model, tokenizer, lines, "tagging"))
    vectors = list(embed_lines(model, tokenizer, lines))
    monkeypatch.setattr(line_predictions, "BATCH_TOKENS", 1)
    alone = list(label_lines(model, tokenizer, lines, "tagging"))
    for a, b in zip(together, alone, strict=True):
        assert a.labels == b.labels and np.allclose(a.probabilities, b.probabilities, atol=1e-5)
    assert np.allclose(vectors, list(embed_lines(model, tokenizer, lines)), atol=1e-5)


def test_weights_that_are_not_finite_are_an_error_not_a_label(runs):
    for task, compute in (("classification", label_lines), ("tagging", label_lines), ("tagging", embed_lines)):
        model, tokenizer, _ = load_model(runs / task, task)
        model.embedding.weight.data[...] = np.nan
        options = [task] if compute is label_lines else []
        with pytest.raises(FloatingPointError, match="of every line; got NaN or infinity"):
            list(compute(model, tokenizer, ["the cat likes"], *options))


@pytest.mark.parametrize(
    "task, command, message",
    [
        ("tagging", "classify --top 2", "--top applies only to classifiers; for a tagger, try --json"),
        (
            "masking",
            "classify",
            "expected a classifier or a tagger; got a masked language model; try `npx-",
        ),
        ("masking", "embed --pooling max", '--pooling: expected one of "mean", "first"; got max'),
        ("tagging", "classify", "line 2: expected text; got an empty line; try removing the line"),
        ("masking", "embed", "line 2: expected text; got an empty line; try removing the line"),
        ("masking", "generate", "expected a language model; got a masked language model"),
        ("masking", "draw confusion", "expected a classifier or a tagger; got a masked language model"),
        (
            "masking",
            "draw beam --input=cat",
            "expected a model that translates or parses; got an encoder; try `draw",
        ),
    ],
)
def test_a_wrong_request_is_answered_in_one_line(runs, tmp_path, capfd, task, command, message):
    name, *options = command.split()
    (tmp_path / "texts").write_text("the cat\n\n")
    if name == "draw":
        pytest.importorskip("matplotlib")
        arguments = ["draw", str(runs / task), *options, "--out", str(tmp_path / "x.svg")]
    else:
        arguments = [name, "--model", str(runs / task), *options]
        arguments += ["--input", str(tmp_path / "texts")] if name != "generate" else []
    assert main(arguments) == 2
    error = capfd.readouterr().err.strip().splitlines()
    assert message in error[-1] and "Traceback" not in "".join(error)


def test_a_sentence_that_is_too_long_is_named_by_its_line_in_the_file(runs, tmp_path, capfd):
    gold = tmp_path / "gold"
    gold.write_text("the\tDT\n\ncat\tNN\n\n" + "the\tDT\n" * 40)
    assert main(["classify", "--model", str(runs / "tagging"), "--gold", str(gold)]) == 2
    assert "line 5: expected at most 30 tokens, the model's maximum length; got" in capfd.readouterr().err


@pytest.mark.parametrize("command, task", [("classify", "classification"), ("embed", "masking")])
def test_more_than_two_texts_are_an_error(runs, tmp_path, capfd, command, task):
    text = tmp_path / "text"
    text.write_text("the cat\nthe cat\ta dog\tx\n")
    assert main([command, "--quiet", "--model", str(runs / task), "--input", str(text)]) == 2
    expected = "line 2: expected one text, or two texts separated by a tab; got 3 texts; try"
    assert expected in (error := capfd.readouterr().err) and error.count("\n") == 1


@pytest.mark.parametrize("task", ["tagging", "classification"])
def test_special_ids_other_than_those_of_the_labels_are_refused(folder, tmp_path, capfd, task):
    spec = Tokenizer.train(folder / "train.txt", vocab_size=270).spec
    vocabulary = spec["model"]["vocab"]
    vocabulary["<pad>"], vocabulary["!"] = vocabulary["!"], 0
    spec["added_tokens"][0]["id"] = vocabulary["<pad>"]
    (tmp_path / "other.json").write_text(json.dumps(spec))
    options = ["--set", f"data.task={task}", "--set", f"data.tokenizer={tmp_path / 'other.json'}"]
    assert train(folder, tmp_path / "new", *options, texts=TEXTS[task]) == 2
    expected = "data.tokenizer: expected the special ids (0, 1, 2, 3) of the labels; got (4, 1, 2, 3); try bpe"
    assert expected in capfd.readouterr().err


@pytest.mark.parametrize("task", ["tagging", "classification"])
def test_labels_that_the_training_text_lacks_are_errors(folder, tmp_path, capfd, task):
    """The scores of validations are those of `classify --gold`. The labels do not change the validation loss."""
    if task == "tagging":
        text = "the\tPDT\ncats\tNNS\n\nthe\tDT\ncat\tNN\ncats\tNNS\n\ncats\tNNS\n"
        n_known, kind, listed = 2, "tagged", "lacks 2 labels; in 4 places"
        counts = "NNS 3, PDT 1"
    else:
        text = f"sees\t{SENTENCES[1]}\nfinds\tthe cat finds the dog\n"
        n_known, kind, listed = 1, "labeled", "lacks 1 label; in 1 place"
        counts = "finds 1"
    gold = tmp_path / "valid"
    gold.write_text(text)
    out = tmp_path / "run"
    command = ["train", f"{folder}/small.toml", "--set", f"data.task={task}", "--quiet"]
    files = f"--train-{kind}={folder}/train.{TEXTS[task][0]}", f"--valid-{kind}={gold}"
    assert main([*command, *files, "--out", str(out)]) == 0
    effect = "predictions therefore count as errors and are left out of the loss"
    expected = f"warning: {gold}: the training text {listed}, {effect}: {counts}\n"
    assert expected in capfd.readouterr().err and expected in (out / "log.txt").read_text()
    assert main(["classify", "--model", f"{out}/checkpoints/step-12", "--gold", str(gold)]) == 0
    entry = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    scores = f"accuracy (micro F1) {entry['accuracy']:.2f}  macro F1 {entry['macro_f1']:.2f}  labels "
    assert scores in capfd.readouterr().err

    model, tokenizer, config = load_model(f"{out}/checkpoints/step-12", task)
    corpus = TASKS[task].prepare((str(gold),), tokenizer, out / "data" / "valid", 32)
    assert corpus.n_targets == n_known
    batches = [batch for _, batch in TASKS[task].validation_batches(corpus, 1)]
    assert sum(batch.n_targets for batch in batches) == n_known and not all(b.n_targets for b in batches)
    losses = [model.loss(batch.ids, batch.labels, loss_normalizer=1.0).item() for batch in batches]
    assert sum(losses) / n_known == pytest.approx(entry["loss"], rel=1e-5)
    with pytest.raises(UserError, match="training text: expected only labels that the tokenizer of the run has; got "):
        TASKS[task].training_batches(corpus, config, tokenizer, 1)
    (tmp_path / "other").write_text("PDT\tthe\n")
    others = [*files[:1], f"--valid-{kind}={tmp_path}/other", "--out", str(tmp_path / "new")]
    assert main([*command, *others]) == 2 and not (tmp_path / "new").exists()
    assert f"{tmp_path}/other: expected labels that the training text has; got " in capfd.readouterr().err
    if find_spec("matplotlib"):
        assert main(["draw", str(out), "confusion", "--out", str(tmp_path / "c.svg")]) == 0
        assert f"{counts.split()[0]} as " in (tmp_path / "c.alt.txt").read_text()


def test_a_file_of_tagged_words_is_answered_with_gold(runs, capfd):
    assert main(["classify", "--model", str(runs / "tagging"), "--input", str(runs / "valid.tags")]) == 2
    message = "line 1: expected words separated by spaces; got a tab; try --gold F for a file with lines word<TAB>"
    assert message in capfd.readouterr().err


def test_a_labeled_file_as_input_of_a_classifier_gives_one_warning(runs, capfd):
    lines = (runs / "valid.labeled").read_text().splitlines()
    assert main(["classify", "--model", str(runs / "classification"), "--input", str(runs / "valid.labeled")]) == 0
    captured = capfd.readouterr()
    label = lines[0].partition("\t")[0]
    warning = f"warning: the input begins with the label {label!r} and a tab; for a labeled file, try --gold F"
    assert captured.err.count("try --gold F") == 1 and warning in captured.err
    assert len(captured.out.splitlines()) == len(lines)


def test_a_tagger_learns_from_a_file_of_words_and_a_file_of_tags(folder, runs, tmp_path, capfd):
    """The result is the same as with one file of tagged words."""
    for part in ("train", "valid"):
        lines = (folder / f"{part}.txt").read_text().splitlines()
        (tmp_path / part).write_text("".join(" ".join(TAG_OF[word] for word in line.split()) + "\n" for line in lines))
    files = [f"--{part}-{kind}={path}" for part in ("train", "valid")
             for kind, path in (("tagged", folder / f"{part}.txt"), ("tags", tmp_path / part))]  # fmt: skip
    command = ["train", f"{folder}/small.toml", "--set", "data.task=tagging", "--quiet", "--out"]
    assert main([*command, str(tmp_path / "run"), *files]) == 0
    assert train(folder, "tagger", "--set", "data.task=tagging", texts=TEXTS["tagging"]) == 0
    weights, expected = (outcome(out)[0] for out in (tmp_path / "run", folder / "tagger"))
    assert weights == expected
    gold = ["classify", "--model", str(tmp_path / "run"), "--gold"]
    capfd.readouterr()
    assert main([*gold, f"{folder}/valid.txt", "--gold-tags", str(tmp_path / "valid")]) == 0
    parallel = capfd.readouterr()
    assert main([*gold, f"{folder}/valid.tags"]) == 0 and capfd.readouterr() == parallel
    again = ["train", "--init", str(tmp_path / "run"), "--set", "train.max_steps=1", "--quiet"]
    tagged = f"--train-tagged={folder}/train.tags"
    message = f"got one file, to be paired with {tmp_path}/train from the configuration; try adding --train-tags F, or "
    for tags, expected in (
        ([], f"--train-tagged: expected both files of a text; {message}--train-tags= for no such file\n"),
        ([f"--train-tags={tmp_path}/train"], f"or no file of tags if {folder}/train.tags contains the tags"),
    ):
        assert main([*again, tagged, *tags, "--out", str(tmp_path / "next")]) == 2
        assert expected in capfd.readouterr().err
    assert main([*again, tagged, "--train-tags=", "--out", str(tmp_path / "next")]) == 0
    (tmp_path / "short").write_text("DT NN VB DT NN\n")
    (tmp_path / "valid").write_text("DT\n" + "".join((tmp_path / "valid").read_text().splitlines(True)[1:]))
    n = len(SENTENCES) // 2
    for changed, message in (
        (
            f"--valid-tags={tmp_path}/short",
            f"short: expected {n} lines, one for each sentence of {folder}/valid.txt; got 1;",
        ),
        (f"--valid-tags={tmp_path}/valid", f"line 1: expected 5 tags, one for each word of {folder}/valid.txt; got 1;"),
        ("--valid-tagged=", "data.valid_tagged: expected a text file; got an empty name; try --valid-tagged FILE"),
    ):
        others = [option for option in files if option.partition("=")[0] != changed.partition("=")[0]]
        assert main([*command, str(tmp_path / "other"), *others, changed]) == 2
        assert message in capfd.readouterr().err and not (tmp_path / "other").exists()


def test_a_file_of_tags_is_part_of_the_text(folder, tmp_path, capfd):
    """A changed file is reported. Words and tags are not compared like the two sides of a translation."""
    tags = (folder / "train.txt").read_text()  # each word is its own tag
    for name in ("tags", "copy"):
        (tmp_path / name).write_text(tags)
    files = [f"--{part}-tagged={folder}/train.txt" for part in ("train", "valid")]
    files += [f"--{part}-tags={tmp_path}/tags" for part in ("train", "valid")]
    out = ["--out", str(tmp_path / "run"), "--set", "train.max_steps=1", "--quiet"]
    assert main(["train", f"{folder}/small.toml", "--set", "data.task=tagging", *files, *out]) == 0
    assert not re.search("sides|validation sources", capfd.readouterr().err)
    (tmp_path / "copy").write_text(tags.replace("sees", "finds"))
    assert main(["train", "--resume", f"--train-tags={tmp_path}/copy", *out]) == 2
    error = capfd.readouterr().err
    assert f"; try the files of the run ({folder}/train.txt, {tmp_path}/tags), which it uses if you name none" in error


def test_the_confusion_matrix_is_drawn_with_a_description(runs, tmp_path):
    pytest.importorskip("matplotlib")
    assert main(["draw", str(runs / "classification"), "confusion", "--out", str(tmp_path / "c.svg")]) == 0
    assert (
        main(["draw", str(runs / "tagging"), "heads", "--input", SENTENCES[0], "--out", str(tmp_path / "h.svg")]) == 0
    )
    draw = ["draw", str(runs / "classification"), "heads", "--out", str(tmp_path / "p.svg")]
    assert main([*draw, "--input", "the cat\tthe dog"]) == 0
    assert (tmp_path / "p.alt.txt").read_text().split(". Each")[0].count("</s>") == 2  # one after each text
    text = (tmp_path / "c.alt.txt").read_text()
    assert text.startswith("Confusion matrix: accuracy ") and "the 3 most frequent of 3 labels" in text
