"""Training that starts from another run's weights (train.init) or leaves parameters as they are (train.freeze)."""

from dataclasses import replace

import numpy as np
import pytest

import npx
from models import FlatParameters
from tests.helpers import small_updates, trainings
from tests.helpers.trainings import config, crash_after, one_line, outcome, run
from train import UserError, train
from train.cli import main
from train.cli.info import describe
from train.learn import training
from train.learn.memory import count_trained, training_memory
from train.learn.warm_start import computation_differences, freeze, select_parameters, warm_start
from train.run.checkpoint import load_checkpoint, load_model
from train.run.config import RunConfig
from train.run.folder import RunFolder
from train.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def source(text, tmp_path_factory):
    """A run folder after 3 updates."""
    out = tmp_path_factory.mktemp("source") / "run"
    run(text, out, max_steps=3, validate_score=False)
    return out


def last(out):
    """Return the newest checkpoint of a run."""
    return load_checkpoint(RunFolder(out).step_paths()[-1])


def start_from(folder, source, out, resume=False, max_steps=12, model=(), data=(), **changes):
    """Train from the weights and tokenizer of `source`."""
    tables = trainings.tables(folder, init=str(source), max_steps=max_steps, validate_score=False, **changes)
    tables["data"] |= {"tokenizer": str(source / "tokenizer.json")} | dict(data)
    tables["model"] |= dict(model)
    return train(RunConfig.from_dict(tables), out, resume=resume, progress=False)


def test_all_weights_or_those_that_match_are_copied(source):
    trained, tokenizer, _ = load_model(source)
    expected = trained.state_dict()
    for patterns, copied in (("", [*expected]), ("encoder.*,embedding.weight", None), ("*", [*expected])):
        model = trained.config.build(seed=5)
        fresh = model.state_dict()
        line = warm_start(model, str(source), patterns, tokenizer)
        names = copied or [name for name in expected if name.startswith(("encoder.", "embedding."))]
        assert f"from {len(names)} of {len(expected)} parameters" in line
        for name, values in model.state_dict().items():
            assert np.array_equal(values, (expected if name in names else fresh)[name]), name


def test_selected_weights_of_a_model_that_computes_another_function_are_copied_with_a_warning(text, source, tmp_path):
    trained, tokenizer, _ = load_model(source)
    changes = {"n_heads": 4, "positions": "rotary"}
    for patterns, model_changes in (("*", {}), ("encoder.*", changes), ("*", changes)):
        warnings = []
        model = replace(trained.config, **model_changes).build(seed=5)
        line = warm_start(model, str(source), patterns, tokenizer, warnings.append)
        n_copied, checkpoint = line.split()[2], line.split()[-1]
        expected = (
            'train.init: model.n_heads is 4 instead of 2, model.positions is "rotary" instead of "sinusoidal", with '
            f"which {checkpoint} was trained; the {n_copied} copied parameters may compute a different function"
        )
        assert warnings == [expected] * bool(model_changes)
    start_from(text, source, tmp_path, max_steps=1, init_parameters="*", model={"n_heads": 4})
    assert "  warning: train.init: model.n_heads is 4 " in (tmp_path / "log.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"n_layers": 2}}, r'init_parameters = "embedding.\*, encoder.0.\*, decoder.0.\*"$'),
        ({"model": {"d_ff": 8}}, "init_parameters with patterns of those that fit$"),
        ({"freeze": "*"}, "match all"),
    ],
)
def test_weights_that_do_not_fit_are_reported_before_the_text_is_encoded(
    text, source, tmp_path, monkeypatch, changes, message
):
    monkeypatch.setattr(training, "prepare_corpora", None)
    with pytest.raises(UserError, match=message):
        start_from(text, source, tmp_path / "run", **changes)


def test_an_older_checkpoint_is_used_if_the_newest_one_of_the_source_is_damaged(copied):
    *_, older, newest = RunFolder(copied).step_paths()
    expected, (trained, tokenizer, _) = load_checkpoint(older).weights, load_model(newest)
    (newest / "model.safetensors").write_bytes(b"")
    model = trained.config.build(seed=5)
    lines = []
    line = warm_start(model, str(copied), "", tokenizer, lines.append)
    assert line.endswith(f"of {older}") and "model.safetensors: damaged checkpoint" in lines[0]
    assert all(np.array_equal(values, expected[name]) for name, values in model.state_dict().items())


@pytest.mark.parametrize("crash_step", [2, 4])  # before and after the first checkpoint
def test_resuming_a_run_with_initial_weights_and_frozen_parameters_is_exact(text, source, tmp_path, crash_step):
    changes = {"freeze": "encoder.*", "init_parameters": "e*,decoder.0.attention.*", "max_steps": 5}
    start_from(text, source, tmp_path / "whole", **changes)
    with crash_after(crash_step):
        start_from(text, source, tmp_path / "parts", **changes)
    start_from(text, source, tmp_path / "parts", resume=True, **changes)
    assert outcome(tmp_path / "whole") == outcome(tmp_path / "parts")
    before, after = last(source), last(tmp_path / "whole")
    for name, values in after.weights.items():
        assert np.array_equal(values, before.weights[name]) == name.startswith("encoder."), name
    trained = sum(values.size for name, values in after.weights.items() if not name.startswith("encoder."))
    assert after.optimizer_arrays["m"].shape == after.optimizer_arrays["v"].shape == (trained,)


def test_frozen_parameters_do_not_change_the_gradient_of_the_others():
    grads = []
    for patterns in ("", "encoder.*,embedding.weight"):
        model = small_updates.model()
        freeze(model, patterns)
        updater = small_updates.updater_of(model, None)
        updater.compute_gradient([small_updates.batch()], step=1)
        grads.append({name: p.grad for name, p in model.named_parameters()})
    for name, g in grads[1].items():
        assert g is None if name.startswith(("encoder.", "embedding.")) else np.array_equal(g, grads[0][name]), name


def test_frozen_parameters_are_computed_with_in_the_compute_dtype():
    model = small_updates.model()
    expected = model.state_dict()
    freeze(model, "decoder.*")
    FlatParameters(model, np.float16)
    assert {p.dtype for p in model.parameters()} == {np.dtype(np.float16)}
    model.load_state_dict(expected)
    assert all(np.array_equal(values, expected[name]) for name, values in model.state_dict().items())


def test_unusable_weights_and_patterns_raise_one_line(text, source, tmp_path):
    (tmp_path / "other.txt").write_text("drei vier\n" * 9)
    Tokenizer.train(tmp_path / "other.txt", vocab_size=262).save(tmp_path / "tokenizer.json")
    cases = [
        (
            {"model": {"d_ff": 12}},
            "; got d_ff = 16 instead of 12; try the .model. and tokenizer of that run, which apply if",
        ),
        ({"model": {"n_layers": 2, "dropout": 0.5}}, "; got n_layers = 1 instead of 2; try "),
        ({"model": {"norm_placement": "pre"}}, "got no "),
        ({"model": {"n_layers": 2}, "init_parameters": "encoder.*"}, "got no encoder.1.attention"),
        (
            {"model": {"n_heads": 4}},
            r"expected model.n_heads = 2, .*; got 4; try n_heads = 2, or train.init_parameters = ",
        ),
        ({"model": {"norm_eps": 1e-5}}, "expected model.norm_eps = 1e-06, .*; got 1e-05; try "),
        ({"model": {"position_rates": "tensor2tensor"}}, 'expected model.position_rates = "paper", .*"tensor2tensor"'),
        (
            {"data": {"tokenizer": str(tmp_path / "tokenizer.json")}},
            r"got embedding.weight of shape \(\d+, 8\) instead of ",
        ),
        (
            {"init_parameters": "encoder.*, coder.*"},
            "train.init_parameters: .* got 'coder..', which matches no .*; try encoder",
        ),
        ({"init_parameters": ","}, "train.init_parameters: .* got ',', which matches no parameter; try "),
        ({"freeze": "Encoder.*"}, "train.freeze: expected patterns .*; got 'Encoder.*'.*; try encoder"),
        ({"freeze": "encoder.layers.0.*"}, r"train.freeze: .*; got 'encoder.layers.0.\*'.*; try encoder.0.\*$"),
        ({"freeze": "model.decoder.layers.0"}, r"train.freeze: .*; try decoder.0.\*$"),
        ({"freeze": "*.biases"}, r"train.freeze: .*; try \*.bias$"),
        ({"freeze": "embedding.weights"}, r"train.freeze: .*; try embedding.weight$"),
        ({"freeze": "*"}, "train.freeze: .* match all "),
    ]
    for changes, message in cases:
        with pytest.raises(UserError, match=message) as error:
            start_from(text, source, tmp_path / "run", **changes)
        one_line(error)
        assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match="expected a run folder or a checkpoint folder; got a path that does not"):
        run(text, tmp_path / "run", init=str(tmp_path / "none"))
    with pytest.raises(UserError, match=r"train.init: expected the tokenizer of .*; try data.tokenizer = "):
        model, tokenizer, _ = load_model(source)
        tokenizer.digest = "another"
        warm_start(model, str(source), "", tokenizer)
    assert select_parameters("train.freeze", "", ["a"]) == []
    with pytest.raises(UserError, match="train.init_parameters has no effect without train.init"):
        run(text, tmp_path / "run", init_parameters="encoder.*")


def test_a_default_distance_of_positions_equals_the_same_distance_in_the_configuration(text, source, tmp_path):
    tables = trainings.tables(text, max_steps=1)
    tables["data"] |= {"tokenizer": str(source / "tokenizer.json")}
    tables["model"] |= {"positions": "t5"}
    train(RunConfig.from_dict(tables), tmp_path / "t5", progress=False)
    positions = {"positions": "t5", "max_relative_distance": 128}
    start_from(text, tmp_path / "t5", tmp_path / "run", max_steps=1, model=positions)
    with pytest.raises(UserError, match="expected model.max_relative_distance = 128, .*; got 64; try "):
        start_from(text, tmp_path / "t5", tmp_path / "new", model=positions | {"max_relative_distance": 64})


def test_a_window_of_attention_is_part_of_the_computation(source):
    trained, tokenizer, _ = load_model(source)
    restricted = replace(trained.config, attention_window=3)
    advice = 'got 3; try omitting attention_window, or train.init_parameters = "*" to copy them anyway'
    with pytest.raises(UserError, match="expected model.attention_window unset, with which .* was trained; ") as error:
        warm_start(restricted.build(seed=5), str(source), "", tokenizer)
    assert one_line(error).endswith(advice)
    assert computation_differences(trained.config, restricted) == [("attention_window", "unset", "3")]
    warnings = []
    warm_start(restricted.build(seed=5), str(source), "*", tokenizer, warnings.append)
    assert "model.attention_window is 3 instead of unset, with which" in warnings[0]


def test_the_command_takes_tokenizer_and_configuration_from_the_run(text, source, tmp_path, capsys):
    options = ["--init", str(source), "--quiet", "--set", "train.max_steps=2"]
    assert main(["train", *options, "--out", str(tmp_path / "a"), "--init-parameters", "embedding.*"]) == 0
    made = RunConfig.load(tmp_path / "a" / "config.toml")
    assert made.data.tokenizer == str(source / "tokenizer.json") and made.train.init_parameters == "embedding.*"
    assert made.model == config(text).model and made.train.batch_tokens == 60
    assert main(["train", *options[2:], "--init", str(tmp_path / "a"), "--out", str(tmp_path / "b")]) == 0
    made = RunConfig.load(tmp_path / "b" / "config.toml")
    assert made.train.init_parameters == "" and made.data.tokenizer == str(tmp_path / "a" / "tokenizer.json")
    given = ["--set", "data.tokenizer=bpe", "--set", "data.vocab_size=280"]
    assert main(["train", *options, *given, "--out", str(tmp_path / "c")]) == 2
    assert "embedding.weight of shape" in capsys.readouterr().err
    assert main(["train", *options, "--resume", "--out", str(tmp_path / "a")]) == 2
    assert "--init applies only to a new run" in capsys.readouterr().err
    for path, status in ((tmp_path / "a", 0), ("", 0), (source, 2)):
        changed = ["--set", f"train.init={path}"]
        assert main(["train", "--resume", "--quiet", *changed, "--out", str(tmp_path / "b")]) == status
    assert "but only a new run reads train.init; try a new run with --out" in capsys.readouterr().err


def test_a_vocabulary_size_without_effect_is_reported(text, source, tmp_path, capsys):
    options = ["--init", str(source), "--set", "train.max_steps=1", "--set", "train.warmup_steps=1"]
    file = source / "tokenizer.json"
    size = Tokenizer.load(file).vocab_size
    for given in (9000, size, 37000):  # 37000 is the default
        out = ["--out", str(tmp_path / f"run{given}"), "--set", f"data.vocab_size={given}"]
        assert main(["train", *options, *out]) == 0
        line = f"data.vocab_size = 9,000 has no effect: {file} has {size} subwords\n"
        err = capsys.readouterr().err
        assert err.count("has no effect") == err.count(line) == (given == 9000)
    assert main(["train", "--resume", "--set", "train.max_steps=2", "--out", str(tmp_path / "run9000")]) == 0
    assert "has no effect" not in capsys.readouterr().err


@pytest.mark.parametrize("part", ["train", "valid"])
@pytest.mark.parametrize("given", ["--{part}-src={file}", "--set=data.{part}_src={file}"])
def test_one_side_of_a_text_is_not_combined_with_the_text_of_another_run(text, source, tmp_path, capsys, part, given):
    options = ["--init", str(source), "--out", str(tmp_path / "new"), given.format(part=part, file=text / "valid.en")]
    assert main(["train", *options]) == 2
    error = capsys.readouterr().err
    assert f"expected both files of a text; got one file, to be paired with {text / f'{part}.de'} from" in error
    assert error.count("\n") == 1 and f"--{part}-src: " in error and f"adding --{part}-tgt F\n" in error
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("patterns", "n_frozen"), [("", 0), ("encoder.*", None), ("embedding.weight", 300 * 128)])
@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_info_counts_frozen_parameters_once(patterns, n_frozen, decay):
    """Frozen parameters have no gradients, no moments and no moving average."""
    config = RunConfig.from_dict({"model": {"preset": "tiny"}, "train": {"freeze": patterns, "ema_decay": decay}})
    shape = config.transformer_config(300)
    n = shape.n_parameters()
    if n_frozen is None:
        n_frozen = sum(p.size for name, p in shape.build_abstract().named_parameters() if name.startswith("encoder."))
    memory = training_memory(n, count_trained(shape, patterns), npx.precision_named("float32"), bool(decay))
    assert sum(memory.values()) == 4 * (n + (3 + bool(decay)) * (n - n_frozen))
    lines = [*describe(shape, config)]
    frozen = f", {n_frozen:,} of them frozen" if n_frozen else ""
    assert f"parameters   {n:,}{frozen}" in lines
    moments = f"gradients {4 * (n - n_frozen) / 2**20:,.0f}, Adam {8 * (n - n_frozen) / 2**20:,.0f}"
    assert any(line.startswith("memory") and moments in line for line in lines)
