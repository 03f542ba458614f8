"""BERT: a folder with random weights is imported, used and trained further, and bad folders raise one-line errors."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from autograd import no_grad
from tests.helpers.marian_folders import write_json
from train.cli import main
from train.run.checkpoint import load_model

VOCABULARY = "[PAD] [UNK] a [CLS] dog [SEP] run ##s [MASK] cat".split()
OURS = "[PAD] [CLS] [SEP] [MASK] [UNK] a dog run ##s cat".split()
SIZES = {"hidden_size": 4, "intermediate_size": 6, "max_position_embeddings": 12, "type_vocab_size": 2}
D, F = 4, 6


def write_folder(tmp_path, head=True, **changes):
    """Write a model of one layer."""
    folder = tmp_path / "bert"
    folder.mkdir()
    config = {"model_type": "bert", "vocab_size": len(VOCABULARY), "num_hidden_layers": 1, "num_attention_heads": 2}
    write_json(folder / "config.json", config | SIZES | changes)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    layer = "encoder.layer.0"
    linears = {f"{layer}.attention.self.{name}": (D, D) for name in ("query", "key", "value")}
    linears |= {f"{layer}.attention.output.dense": (D, D), f"{layer}.intermediate.dense": (F, D)}
    linears |= {f"{layer}.output.dense": (D, F), "pooler.dense": (D, D)}
    norms = ["embeddings.LayerNorm", f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    tables = {"word": len(VOCABULARY), "position": 12, "token_type": 2}
    shapes = {f"embeddings.{name}_embeddings.weight": (rows, D) for name, rows in tables.items()}
    for name, shape in linears.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    shapes |= {f"{name}.{part}": (D,) for name in norms for part in ("gamma", "beta")}  # as in older files
    shapes = {f"bert.{name}": shape for name, shape in shapes.items()}
    if head:
        transform = "cls.predictions.transform"
        shapes |= {f"{transform}.dense.weight": (D, D), "cls.predictions.bias": (len(VOCABULARY),)}
        shapes |= {f"{transform}.{name}": (D,) for name in ("dense.bias", "LayerNorm.weight", "LayerNorm.bias")}
        shapes |= {"cls.seq_relationship.weight": (2, D), "cls.seq_relationship.bias": (2,)}
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors")
    return folder, weights


def run(*arguments):
    return main([str(argument) for argument in arguments])


def test_special_tokens_move_to_our_ids_with_their_rows(tmp_path, capsys):
    folder, weights = write_folder(tmp_path)
    assert run("import", folder, "--out", tmp_path / "run") == 0
    assert "cls.seq_relationship.* is not imported" in capsys.readouterr().err
    model, tokenizer, config = load_model(tmp_path / "run")
    ids = tokenizer.encode("A Dog runs xyz")
    assert [OURS[i] for i in ids] == ["a", "dog", "run", "##s", "[UNK]"]
    assert tokenizer.word_starts()[5:] == [True, True, True, False, True]
    order = [VOCABULARY.index(token) for token in OURS]
    rows = weights["bert.embeddings.word_embeddings.weight"][order]
    np.testing.assert_array_equal(model.embedding.weight.data, rows)
    text = np.array([[1, *ids, 2]])
    with no_grad():
        hidden = model.encode(text)[0]
        expected = model.output_transform(hidden).data @ rows.T + weights["cls.predictions.bias"][order]
        np.testing.assert_allclose(model(text).data, expected, rtol=1e-5, atol=1e-5)
    assert config.data.task == "masking" and config.data.max_length == 12


def test_a_model_without_outputs_is_trained_on_labels(tmp_path):
    folder, _ = write_folder(tmp_path, head=False)
    (tmp_path / "labeled").write_text("yes\ta dog\nno\ta cat\n")
    assert run("import", folder, "--out", tmp_path / "run") == 0
    check_training(tmp_path)


def test_the_outputs_of_masked_tokens_are_left_out_of_a_classifier(tmp_path):
    folder, _ = write_folder(tmp_path)
    assert run("import", folder, "--out", tmp_path / "run") == 0
    (tmp_path / "text").write_text("a dog runs\na cat\n")
    options = "--set", "train.max_steps=1", "--set", "train.warmup_steps=1", "--quiet"
    start = "train", tmp_path / "run/config.toml", "--init", tmp_path / "run"
    assert run(*start, "--out", tmp_path / "masked", "--train-text", tmp_path / "text", *options) == 0
    assert "output_transform.inner.weight" in check_training(tmp_path)


def check_training(tmp_path):
    """Train a classifier from the imported run; it starts from the run's parameters. Return these."""
    (tmp_path / "labeled").write_text("yes\ta dog\nno\ta cat\n")
    start = "train", tmp_path / "run/config.toml", "--init", tmp_path / "run", "--out", tmp_path / "labels"
    options = ["data.task=classification", "train.max_steps=1", "train.warmup_steps=1", "train.peak_lr=1e-9"]
    settings = [word for option in options for word in ("--set", option)]
    assert run(*start, "--train-labeled", tmp_path / "labeled", *settings, "--quiet") == 0
    first = load_file(tmp_path / "run/checkpoints/step-0/model.safetensors")
    second = load_file(tmp_path / "labels/checkpoints/step-1/model.safetensors")
    assert {*first} - {*second} <= {
        "output_transform.inner.weight", "output_transform.inner.bias", "output_transform.norm.gamma",
        "output_transform.norm.beta",
    }  # fmt: skip
    shared = ({*first} & {*second}) - {"output_bias"}
    assert all(np.allclose(first[name], second[name], atol=1e-6) for name in shared)
    return first


def test_checkpoints_of_an_import_have_the_mode_of_other_files(tmp_path):
    folder, _ = write_folder(tmp_path, head=False)
    assert run("import", folder, "--out", tmp_path / "run") == 0
    assert len({path.stat().st_mode for path in (tmp_path / "run/checkpoints/step-0").iterdir()}) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type: expected absolute; got 'relative_key'"),
        ({"is_decoder": True}, "is_decoder: expected False; got True; try a model that docs/formats.md describes"),
        ({"hidden_act": "tanh"}, "hidden_act: expected one of swish"),
        ({"vocab_size": 11}, "expected a tokenizer with 11 subwords, the value of vocab_size; got 10; try"),
        ({"type_vocab_size": 0}, "type_vocab_size: expected at least 1; got 0"),
        ({"max_position_embeddings": 2}, "config.json: max_position_embeddings: expected at least 3; got 2; try a"),
        ({"num_attention_heads": 3}, "hidden_size: expected a multiple of n_heads"),
        ({"intermediate_size": 7}, "intermediate.dense.weight: expected shape (7, 4), as in the settings; got shape"),
    ],
    ids=str,
)
def test_a_folder_that_does_not_fit_gives_a_one_line_error(tmp_path, capsys, changes, message):
    folder, _ = write_folder(tmp_path, head=False, **changes)
    assert run("import", folder, "--out", tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not (tmp_path / "run").exists()


TOKENIZERS = {
    "no vocabulary": (None, None, "vocab.txt: expected"),
    "no mask": ("vocab.txt", VOCABULARY[:-2], "expected a vocabulary with [MASK]"),
    "repeated": ("vocab.txt", [*VOCABULARY, "dog"], "vocab.txt: expected each subword once; got a repeated subword"),
    "BPE": ("tokenizer.json", {"model": {"type": "BPE", "vocab": {}}}, "expected a WordPiece tokenizer; got another"),
}


@pytest.mark.parametrize(("name", "content", "message"), TOKENIZERS.values(), ids=[*TOKENIZERS])
def test_a_damaged_tokenizer_gives_a_one_line_error(tmp_path, capsys, name, content, message):
    folder, _ = write_folder(tmp_path, head=False)
    (folder / "vocab.txt").unlink()
    if name:
        (folder / name).write_text("\n".join(content) if isinstance(content, list) else json.dumps(content))
    assert run("import", folder, "--out", tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("classifier.weight", "got classifier.weight; try a model that docs/formats.md describes"),
        (
            "pooler.dense.weight",
            "expected tensors of one model; got names with and without the prefix bert; try a model",
        ),
    ],
)
def test_another_tensor_gives_a_one_line_error(tmp_path, capsys, name, message):
    folder, weights = write_folder(tmp_path, head=False)
    save_file(weights | {name: np.ones((D, D), np.float32)}, folder / "model.safetensors")
    assert run("import", folder, "--out", tmp_path / "run") == 2
    assert message in capsys.readouterr().err
