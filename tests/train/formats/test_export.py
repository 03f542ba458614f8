"""`export` writes the same model in another format; exporting an imported model restores the original files."""

import json
import sys
from dataclasses import asdict, make_dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from models import TransformerConfig
from tests.helpers.marian_folders import reference_logits, tokenizer_spec, write_folder
from tests.helpers.small_models import build
from train.cli import main
from train.errors import UserError, quote
from train.formats import gpt2, import_folder
from train.formats.export import WRITERS
from train.formats.huggingface import write_run
from train.formats.marian_folder import check_model, marian_model
from train.formats.settings import ACTIVATIONS
from train.run.checkpoint import load_model
from train.run.config import RunConfig
from train.run.folder import RunFolder
from train.text.pair_tokenizer import PairTokenizer
from train.text.tokenizer import SPECIALS, Tokenizer

TOKENIZER = Tokenizer(tokenizer_spec(270))
V = TOKENIZER.vocab_size
OPTIONS = {
    "positions": ["sinusoidal", "sinusoidal_halves", "learned"],
    "position_rates": [None, "paper", "tensor2tensor"],
    "activation": ["relu", "gelu", "gelu_erf", "silu"],
    "attention_bias": [False, True],
    "output_bias": [False, True],
    "scale_embedding": [False, True],
    "target_space": [False, True],
    "decoder_start": ["bos", "zeros", "pad"],
    "tying": ["all", "output", "none"],
}


def small(**options):
    sizes = {"d_model": 8, "d_ff": 12, "n_heads": 2, "n_layers": 1, "dropout": 0.0, "max_positions": 12}
    return TransformerConfig(V, **sizes | {"norm_eps": 1e-5} | options)


@settings(max_examples=12)
@given(st.fixed_dictionaries({name: st.sampled_from(values) for name, values in OPTIONS.items()}))
def test_marian_tensors_compute_our_logits(options):
    """The logit of padding is left out, because it has no counterpart if the decoder begins with another input."""
    model = build(small(**options), dtype="float32").eval()
    converted = marian_model(model, TOKENIZER, "huggingface")
    src, tgt = [7, 9, 30, 2], [1, 8, 30, 40, 9]
    theirs = [converted.marian_id(i) for i in src], [converted.pad_id, *(converted.marian_id(i) for i in tgt[1:])]
    logits = reference_logits(converted.tensors, json_config(model.config), *theirs)
    ours = model(np.array([src]), np.array([tgt])).data[0][:, converted.our_ids]
    is_kept = np.arange(V) != (converted.pad_id if options["decoder_start"] != "pad" else V)
    np.testing.assert_allclose(logits[:, is_kept], ours[:, is_kept], atol=1e-4, rtol=1e-4)


def json_config(c):
    """Return the keys of config.json that the reference reads."""
    names = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    sizes = {"d_model": c.d_model, "encoder_attention_heads": c.n_heads, "encoder_layers": c.n_layers}
    sizes |= {"decoder_layers": c.n_layers, "scale_embedding": c.scale_embedding}
    return sizes | {"activation_function": names[c.activation]}


def unigram(*subwords):
    """Return a tokenizer whose file has a list of subwords with scores instead of their ids."""
    vocabulary = [[name, -float(i)] for i, name in enumerate((*SPECIALS, *subwords))]
    model = {"type": "Unigram", "unk_id": 3, "vocab": vocabulary, "byte_fallback": False}
    return Tokenizer({**TOKENIZER.spec, **dict.fromkeys(("normalizer", "pre_tokenizer", "decoder")), "model": model})


@pytest.mark.parametrize("is_separate", [False, True])
def test_a_unigram_tokenizer_is_refused(is_separate):
    tokenizer = unigram("\u2581a", "\u2581dog")
    n = {"src_vocab_size": tokenizer.vocab_size} if is_separate else {}
    model = replace(small(**n), vocab_size=tokenizer.vocab_size).build()
    message = "export: expected a BPE, WordPiece or WordLevel tokenizer; got Unigram; try --to safetensors"
    with pytest.raises(UserError, match=message):
        marian_model(model, PairTokenizer(tokenizer, tokenizer) if is_separate else tokenizer, "ctranslate2")


def make_run(path, search=None, **options):
    shape = small(**options)
    model = shape.build()
    config = RunConfig.from_dict({"data": {"vocab_size": 270}, "search": search or {}})
    write_run(RunFolder(path), config, shape, TOKENIZER, model.state_dict())
    return path


DECODER = {"norm_placement": "pre", "architecture": "decoder"}


def run_export(run, target, out, *options):
    return main(["export", str(run), "--to", target, "--out", str(out), *options])


@pytest.mark.parametrize("options", [{}, {"tie_word_embeddings": False}, {"share_encoder_decoder_embeddings": False}])
def test_import_export_import_gives_the_same_bytes(tmp_path, options):
    write_folder(tmp_path / "hf", **options)
    import_folder(tmp_path / "hf", tmp_path / "a", pytest.fail)
    assert run_export(tmp_path / "a", "huggingface", tmp_path / "again") == 0
    import_folder(tmp_path / "again", tmp_path / "b", pytest.fail)
    first, second = (load_file(tmp_path / name / "checkpoints/step-0/model.safetensors") for name in "ab")
    assert first.keys() == second.keys()
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)
    configs = [(tmp_path / name / "config.toml").read_text().replace(str(tmp_path / name), "") for name in "ab"]
    assert configs[0] == configs[1]


def test_an_exported_run_translates_alike_when_it_is_imported(tmp_path):
    run = make_run(tmp_path / "run")
    assert run_export(run, "huggingface", tmp_path / "hf") == 0
    import_folder(tmp_path / "hf", tmp_path / "again", pytest.fail)
    model, _, _ = load_model(run)
    other, tokenizer, _ = load_model(tmp_path / "again")
    ids = np.array([[7, 9, 2]])
    ours = model(ids, np.array([[1, 8]])).data[..., 1:]
    theirs = other(np.array([[6, 8, 1]]), np.array([[tokenizer.bos_id, 7]])).data[..., :-1]
    np.testing.assert_allclose(theirs, ours, atol=1e-5)


@pytest.mark.parametrize(
    "target, message",
    [
        ("huggingface", "got a Hugging Face model; try `npx-transformer import <OUT> --out RUN`\n"),
        ("safetensors", "got an export in safetensors format; try the run that was exported\n"),
        ("", "got another folder; try a folder that `train` has written\n"),  # model.safetensors alone
    ],
)
def test_a_model_in_another_format_is_not_a_run(tmp_path, capfd, target, message):
    out = tmp_path / "out"
    assert run_export(make_run(tmp_path / "run"), target or "safetensors", out) == 0
    if not target:
        (out / "config.json").unlink()
    (tmp_path / "text").write_text("a\n")
    sides = [f"--train-{side}={tmp_path / 'text'}" for side in ("src", "tgt")]
    for command in (
        ["translate", f"--input={tmp_path / 'text'}", "--model"],
        ["export", "--to=onnx", "--out=o"],
        ["train", *sides, "--out=o", "--init"],
    ):
        capfd.readouterr()
        assert main([*command, str(out)]) == 2
        expected = f"{out}: expected a run folder or a checkpoint folder; {message.replace('<OUT>', quote(out))}"
        assert capfd.readouterr().err.endswith(expected)


@pytest.mark.parametrize("rule, early_stopping", [("fairseq", True), ("transformers", "never")])
def test_the_stopping_rule_of_the_search_is_exported_and_imported(tmp_path, rule, early_stopping):
    run = make_run(tmp_path / "run", {"candidate_rule": rule})
    assert run_export(run, "huggingface", tmp_path / "hf") == 0
    assert json.loads((tmp_path / "hf/generation_config.json").read_text())["early_stopping"] == early_stopping
    import_folder(tmp_path / "hf", tmp_path / "again", pytest.fail)
    assert load_model(tmp_path / "again")[2].search.candidate_rule == rule


def test_safetensors_hold_our_parameters(tmp_path):
    run = make_run(tmp_path / "run", norm_placement="pre", positions="rotary")
    assert run_export(run, "safetensors", tmp_path / "out", "--dtype", "float16") == 0
    weights = load_file(tmp_path / "out/model.safetensors")
    parameters = load_model(run)[0].state_dict()
    assert weights.keys() == parameters.keys()
    assert all((weights[name] == parameters[name].astype("float16")).all() for name in weights)
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["model_type"] == "npx-transformer" and config["positions"] == "rotary"


@pytest.mark.parametrize(
    "options, target, more, message",
    [
        (
            {"norm_placement": "pre"},
            "huggingface",
            [],
            "expected model.norm_placement = post, because --to huggingface supports nothing else; got pre",
        ),
        ({"positions": "rotary"}, "huggingface", [], "model.positions = sinusoidal or sinusoidal_halves or learned"),
        ({"activation": "swiglu"}, "huggingface", [], "model.activation = "),
        ({"d_k": 3}, "huggingface", [], "model.d_k unset or 4"),
        ({"d_model": 10, "n_heads": 4, "d_k": 2, "d_v": 2}, "huggingface", [], "model.n_heads = 1 or 2 or 5 or 10,"),
        ({"norm_placement": "sandwich"}, "huggingface", [], "got sandwich; try --to safetensors"),
        ({"attention_window": 3}, "huggingface", [], "model.attention_window unset, because"),
        ({"attention_window": 3, "norm_placement": "pre"}, "huggingface", [], "got pre; try --to safetensors"),
        ({"norm_eps": 1e-3}, "huggingface", [], "model.norm_eps of at most 2e-05"),
        ({"architecture": "decoder"}, "huggingface", [], "model.architecture = encoder_decoder"),
        (
            {},
            "huggingface",
            ["--dtype", "int8"],
            "--dtype: expected float32 or float16 with --to huggingface; got int8",
        ),
        ({}, "tensorflow", [], "--to: expected"),
    ],
)
def test_what_a_format_lacks_gives_one_line_and_leaves_nothing(tmp_path, capsys, options, target, more, message):
    run = make_run(tmp_path / "run", **options)
    assert run_export(run, target, tmp_path / "out", *more) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("check", [partial(check_model, format_name="onnx"), gpt2.check_model])
def test_heads_that_do_not_divide_the_width_are_an_error(check):
    options = DECODER if check is gpt2.check_model else {}
    with pytest.raises(UserError, match="expected model.n_heads = 1 or 2 or 5 or 10, because .*; got 4; try --to"):
        check(small(d_model=10, n_heads=4, d_k=2, d_v=2, **options))


def test_ctranslate2_accepts_heads_that_do_not_divide_the_width():
    check_model(small(d_model=10, n_heads=4, d_k=2, d_v=2), "ctranslate2")


@pytest.mark.parametrize("check", [partial(check_model, format_name="onnx"), gpt2.check_model])
def test_a_new_option_of_models_is_an_error_until_a_format_has_it(check):
    options = DECODER if check is gpt2.check_model else {}
    check(small(**options))
    newer = make_dataclass("Newer", [("sparse", bool, False)], bases=(TransformerConfig,), frozen=True)
    with pytest.raises(UserError, match="expected model.sparse = False, because .* nothing else; got True"):
        check(newer(**asdict(small(**options)), sparse=True))


def test_an_existing_folder_is_kept(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/notes.txt").write_text("mine")
    assert run_export(run, "safetensors", tmp_path / "out") == 2
    assert "out: expected a new folder; got a folder that is not empty; try another --out" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes.txt"]


def test_a_link_and_a_folder_in_the_run_are_errors(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    for source in (run, run / "checkpoints/step-0"):
        assert run_export(source, "safetensors", run / "exported") == 2
        assert "expected a folder outside the run; got a folder in" in capsys.readouterr().err
    (tmp_path / "checkpoints").mkdir()
    other = make_run(tmp_path / "checkpoints/other")
    before = sorted(tmp_path.rglob("*"))
    assert run_export(run, "safetensors", tmp_path / "link") == 2
    assert "link: expected a new folder; got a symbolic link; try another --out" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
    assert run_export(other, "safetensors", tmp_path / "exported") == 0


@pytest.mark.parametrize("target", ["huggingface", "safetensors", "ctranslate2"])
def test_a_weight_beyond_float16_gives_a_one_line_error(tmp_path, capsys, target):
    if target == "ctranslate2":
        pytest.importorskip("ctranslate2", reason="the export needs it")
    shape = small(attention_bias=True)
    state = shape.build().state_dict()
    state["encoder.0.attention.output.bias"] = np.full(8, 1e5, np.float32)
    write_run(RunFolder(tmp_path / "run"), RunConfig.from_dict({"data": {"vocab_size": 270}}), shape, TOKENIZER, state)
    assert run_export(tmp_path / "run", target, tmp_path / "out", "--dtype", "float16") == 2
    assert "within 65504, the range of float16; got 100000; try float32" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_forbidden_tokens_that_ctranslate2_lacks_are_reported(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(WRITERS, "ctranslate2", lambda *arguments: None)
    assert run_export(make_run(tmp_path / "run", suppressed_ids=(5,)), "ctranslate2", tmp_path / "out") == 0
    assert "forbidden tokens are not part of CTranslate2's format" in capsys.readouterr().err


@pytest.mark.parametrize("target, rule", [("huggingface", "transformers"), ("ctranslate2", "fairseq")])
def test_search_settings_that_the_target_lacks_are_named_with_those_that_it_has(
    tmp_path, capsys, monkeypatch, target, rule
):
    monkeypatch.setitem(WRITERS, target, lambda *arguments: None)
    run = make_run(tmp_path / "run")
    plain = (run / "config.toml").read_text(encoding="utf-8")
    length = plain.replace('length_penalty_type = "paper"', 'length_penalty_type = "length"')
    greedy = length.replace("beam_size = 4", "beam_size = 1")
    no_penalty = plain.replace("length_penalty = 0.6", "length_penalty = 0.0")
    for index, (text, missing, advice) in enumerate(
        [
            (
                plain,
                "length_penalty_type = paper and search.candidate_rule = plain,",
                'length_penalty_type = "length" and',
            ),
            (no_penalty, "candidate_rule = plain,", f'candidate_rule = "{rule}" in [search]'),
            (length, "candidate_rule = plain,", f'candidate_rule = "{rule}" in [search]'),
            (length.replace('candidate_rule = "plain"', f'candidate_rule = "{rule}"'), "", ""),
            (greedy, "", ""),
            (greedy.replace('"plain"', '"fairseq"'), "", ""),
            (greedy.replace('"plain"', '"transformers"'), "candidate_rule = transformers,", 'candidate_rule = "plain"'),
        ]
    ):
        (run / "config.toml").write_text(text, encoding="utf-8")
        assert run_export(run, target, tmp_path / str(index)) == 0
        warning = capsys.readouterr().err
        assert ("no equivalent of search." in warning) == bool(missing)
        assert f"of search.{missing}" in warning or not missing
        assert f"try {advice}" in warning or not missing


def fake_ctranslate2(monkeypatch):
    """Replace the package ctranslate2; return the TransformerSpec that the export fills."""
    spec = MagicMock(config=SimpleNamespace())
    spec.save = lambda folder: (Path(folder) / "config.json").write_text(json.dumps(vars(spec.config)))
    specs = MagicMock()
    specs.TransformerSpec.from_config.return_value = spec
    monkeypatch.setitem(sys.modules, "ctranslate2", MagicMock(specs=specs))
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", specs)
    return spec


@pytest.mark.parametrize("decoder_start", ["bos", "pad"])
def test_ctranslate2_never_predicts_padding(tmp_path, monkeypatch, decoder_start):
    """Padding is left out, or its bias prevents it: here the bias of the model would favor it."""
    spec = fake_ctranslate2(monkeypatch)
    shape = small(decoder_start=decoder_start, output_bias=True)
    state = shape.build().state_dict() | {"output_bias": np.eye(1, V, dtype="f4")[0] * 30}
    config = RunConfig.from_dict({"data": {"vocab_size": 270}})
    write_run(RunFolder(tmp_path / "run"), config, shape, TOKENIZER, state)
    assert run_export(tmp_path / "run", "ctranslate2", tmp_path / "out") == 0
    bias = spec.decoder.projection.bias
    names = spec.register_target_vocabulary.call_args.args[0]
    assert len(bias) == len(names) == V - (decoder_start == "bos")
    assert [names[i] for i in np.flatnonzero(bias)] == ["<pad>"] * (decoder_start == "pad") and bias.max() == 0


def test_the_tokenizer_for_ctranslate2_appends_the_end_of_the_sentence_and_the_model_does_not(tmp_path, monkeypatch):
    """CTranslate2's own converter does not make the model append it either, so both take the same tokens."""
    fake_ctranslate2(monkeypatch)
    assert run_export(make_run(tmp_path / "run"), "ctranslate2", tmp_path / "out") == 0
    assert not json.loads((tmp_path / "out" / "config.json").read_text()).get("add_source_eos", False)
    file = tmp_path / "out" / "tokenizer" / "tokenizer.json"
    assert tokenizers.Tokenizer.from_file(str(file)).encode("a text").tokens.count("</s>") == 1


def test_exported_weights_have_the_mode_of_other_files(tmp_path):
    assert run_export(make_run(tmp_path / "run"), "huggingface", tmp_path / "out") == 0
    assert len({path.stat().st_mode for path in (tmp_path / "out").iterdir()}) == 1


def test_a_missing_library_gives_a_one_line_error(tmp_path, capsys, monkeypatch):
    run = make_run(tmp_path / "run")
    for name in ("ctranslate2", "ctranslate2.specs", "onnx"):
        monkeypatch.setitem(sys.modules, name, None)
    for target in ("ctranslate2", "onnx"):
        assert run_export(run, target, tmp_path / "out") == 2
        error = capsys.readouterr().err
        assert f"the package {target} is not installed" in error and error.count("\n") == 1
