"""GPT-2: language models are exported and imported again with the same logits; bad folders raise one-line errors."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import pre_tokenizers

from models import TransformerConfig
from tests.helpers.marian_folders import write_json
from train.cli import main
from train.errors import UserError
from train.formats.gpt2 import POSITIONS, check_model
from train.formats.huggingface import write_run
from train.formats.settings import TRY_SUPPORTED
from train.run.checkpoint import load_model
from train.run.config import RunConfig
from train.run.folder import RunFolder
from train.text.plain import PlainTokenizer

SHAKESPEARE = Path(__file__).parents[3] / "configs/tinyshakespeare.toml"
GPT2 = {
    "norm_placement": "pre",
    "positions": "learned",
    "scale_embedding": False,
    "attention_bias": True,
    "activation": "gelu",
}


def make_run(tmp_path, **options):
    text = tmp_path / "text"
    text.write_text("a dog runs\na cat sleeps\n")
    tokenizer = PlainTokenizer.from_files([text], "characters", 100)
    sizes = {"d_model": 8, "d_ff": 12, "n_heads": 2, "n_layers": 2, "dropout": 0.0, "max_positions": 16}
    shape = TransformerConfig(tokenizer.vocab_size, architecture="decoder", **sizes | GPT2 | options)
    data = {"task": "language", "max_length": 16, "vocab_size": 100}
    config = RunConfig.from_dict({"model": {"architecture": "decoder"}, "data": data})
    write_run(RunFolder(tmp_path / "run"), config, shape, tokenizer, shape.build(3).state_dict())
    return tmp_path / "run"


def convert(command, source, out, *options):
    return main([command, str(source), "--out", str(out), *options])


@pytest.mark.parametrize(
    "options",
    [{}, {"positions": "sinusoidal", "scale_embedding": True, "attention_bias": False}, {"tying": "none"}],
    ids=str,
)
def test_an_exported_language_model_has_the_same_logits_when_it_is_imported(tmp_path, options):
    run = make_run(tmp_path, **options)
    assert convert("export", run, tmp_path / "hf", "--to", "huggingface") == 0
    assert convert("import", tmp_path / "hf", tmp_path / "again") == 0
    model, tokenizer, _ = load_model(run)
    other, same, config = load_model(tmp_path / "again")
    ids = np.array([tokenizer.encode("a dog sleeps")])
    np.testing.assert_allclose(other(ids).data, model(ids).data, atol=1e-5)
    assert same.encode("a dog") == tokenizer.encode("a dog") and config.data.task == "language"
    if not options:
        files = (path / "checkpoints/step-0/model.safetensors" for path in (run, tmp_path / "again"))
        first, second = map(load_file, files)
        assert all(first[name].tobytes() == second[name].tobytes() for name in first)


def byte_level_folder(tmp_path):
    """Turn an exported model into one with GPT-2's own tokenizer files, and older names of tensors."""
    folder = tmp_path / "hf"
    assert convert("export", make_run(tmp_path), folder, "--to", "huggingface") == 0
    (folder / "tokenizer.json").unlink()
    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))} | {
        "do": 256,
        "<|endoftext|>": 257,
    }
    write_json(folder / "vocab.json", vocabulary)
    (folder / "merges.txt").write_text("#version: 0.2\nd o\n")
    config = json.loads((folder / "config.json").read_text()) | {"vocab_size": 258, "eos_token_id": 257}
    write_json(folder / "config.json", config)
    weights = load_file(folder / "model.safetensors")
    weights["transformer.wte.weight"] = np.ones((258, 8), np.float32)
    weights["transformer.h.0.attn.bias"] = np.ones((1, 1, 16, 16), np.float32)
    save_file({name.removeprefix("transformer."): x for name, x in weights.items()}, folder / "model.safetensors")
    return folder


def test_a_byte_level_tokenizer_needs_no_further_tokens(tmp_path, capsys):
    folder = byte_level_folder(tmp_path)
    assert convert("import", folder, tmp_path / "again") == 0
    model, tokenizer, _ = load_model(tmp_path / "again")
    text = " dog\u00c0 <|endoftext|>\n\U0001f600"
    assert tokenizer.decode(tokenizer.encode(text)) == text and tokenizer.encode("dog") == [
        256,
        tokenizer.encode("g")[0],
    ]
    used = {*tokenizer.encode("".join(map(chr, range(0xD800))))}
    assert not used & {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.special_ids.unk_id}
    assert main(["generate", "--model", str(tmp_path / "again"), "--tokens", "3", "--prompt", "do"]) == 0
    assert convert("export", tmp_path / "again", tmp_path / "out", "--to", "huggingface") == 0
    settings = json.loads((tmp_path / "out/tokenizer_config.json").read_text())
    assert settings["eos_token"] == "<|endoftext|>" and model.config.vocab_size == 258


@pytest.mark.parametrize("settings", [{"add_prefix_space": True}, {"add_prefix_space": False}, {}], ids=str)
def test_a_space_before_a_text_is_added_if_the_settings_say_so(tmp_path, settings):
    folder = byte_level_folder(tmp_path)
    write_json(folder / "tokenizer_config.json", settings)
    assert convert("import", folder, tmp_path / "again") == 0
    tokenizer = load_model(tmp_path / "again")[1]
    text = " dog" if settings.get("add_prefix_space") else "dog"
    assert tokenizer.decode(tokenizer.encode("dog")) == text


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"n_embd": "8"}, "n_embd: expected a whole number; got '8'"),
        ({"n_embd": 16}, "wte.weight: expected shape (258, 16), as in the settings; got shape (258, 8)"),
        ({"vocab_size": 300}, "expected a tokenizer with 300 subwords, the value of vocab_size; got 258"),
        ({"activation_function": "tanh"}, "activation_function: expected one of swish"),
        ({"activation_function": [1]}, "activation_function: expected one of swish"),
        ({"n_inner": "x"}, "n_inner: expected a whole number; got 'x'; try"),
        ({"layer_norm_epsilon": -1}, "layer_norm_epsilon: expected "),
        ({"n_positions": 0}, "n_positions: expected "),
        ({"resid_pdrop": 2}, "resid_pdrop: expected "),
        ({"tie_word_embeddings": "true"}, "tie_word_embeddings: expected true or false; got 'true'"),
        ({"scale_attn_weights": False}, "scale_attn_weights: expected True; got False"),
        ({"eos_token_id": None}, "eos_token_id: expected a whole number; got None"),
    ],
    ids=str,
)
def test_bad_folders_give_a_one_line_error(tmp_path, capsys, changes, message):
    folder = byte_level_folder(tmp_path)
    write_json(folder / "config.json", json.loads((folder / "config.json").read_text()) | changes)
    capsys.readouterr()
    assert convert("import", folder, tmp_path / "again") == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not (tmp_path / "again").exists()
    assert "; try " in error


def test_a_model_without_room_for_two_tokens_gives_a_one_line_error(tmp_path, capsys):
    folder = byte_level_folder(tmp_path)
    write_json(folder / "config.json", json.loads((folder / "config.json").read_text()) | {"n_positions": 1})
    weights = load_file(folder / "model.safetensors")
    name = POSITIONS.removeprefix("transformer.")
    save_file(weights | {name: weights[name][:1]}, folder / "model.safetensors")
    assert convert("import", folder, tmp_path / "again") == 2
    error = f"{folder}/config.json: n_positions: expected a whole number from 2 to 65535; got 1; {TRY_SUPPORTED}\n"
    assert capsys.readouterr().err.endswith(error)


@pytest.mark.parametrize("token", [1, {}, {"content": [1]}], ids=str)
def test_a_bad_special_token_gives_a_one_line_error(tmp_path, capsys, token):
    assert convert("export", make_run(tmp_path), tmp_path / "hf", "--to", "huggingface") == 0
    file = tmp_path / "hf/tokenizer.json"
    write_json(file, json.loads(file.read_text()) | {"added_tokens": [token]})
    assert convert("import", tmp_path / "hf", tmp_path / "again") == 2
    assert "tokenizer.json: expected a byte-level BPE tokenizer; got another" in capsys.readouterr().err


def test_settings_without_a_counterpart_are_reported_and_forbidden_tokens_imported(tmp_path, capsys):
    assert convert("export", make_run(tmp_path), tmp_path / "hf", "--to", "huggingface") == 0
    for name, changes in (
        ("config.json", {"embd_pdrop": 0.3}),
        ("generation_config.json", {"repetition_penalty": 1.5, "bad_words_ids": [[5]]}),
    ):
        write_json(tmp_path / "hf" / name, json.loads((tmp_path / "hf" / name).read_text()) | changes)
    capsys.readouterr()
    assert convert("import", tmp_path / "hf", tmp_path / "again") == 0
    error = capsys.readouterr().err
    assert "embd_pdrop = 0.3 is not imported" in error and "repetition_penalty = 1.5 is not imported" in error
    assert load_model(tmp_path / "again")[0].config.suppressed_ids == (5,)


@pytest.mark.parametrize(
    "options",
    [
        *({"norm_placement": "post"}, {"positions": "rotary"}, {"output_bias": True}, {"attention_window": 3}),
        {"n_heads": 3, "d_k": 2, "d_v": 2},
    ],
    ids=str,
)
def test_what_gpt2_lacks_gives_a_one_line_error(tmp_path, capsys, options):
    run = make_run(tmp_path, **options)
    assert convert("export", run, tmp_path / "hf", "--to", "huggingface") == 2
    key, value = next(iter(options.items()))
    error = capsys.readouterr().err
    assert f"expected model.{key} " in error and error.count("\n") == 1 and not (tmp_path / "hf").exists()
    assert f", because GPT-2 supports nothing else; got {value}; try --to safetensors" in error


def test_the_shakespeare_model_is_refused_only_because_of_its_rotary_positions():
    shape = RunConfig.load(SHAKESPEARE).transformer_config(65)
    with pytest.raises(UserError, match="expected model.positions = .*, because GPT-2 supports nothing else; got rot"):
        check_model(shape)
    check_model(replace(shape, positions="sinusoidal"))
