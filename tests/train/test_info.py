"""`info`: the size and cost of a preset, of a configuration and of a run."""

import json
import shutil

import pytest

from models import PRESETS, TransformerConfig
from tests.helpers.command_line import SET, assert_rejected, data_options, run, texts  # noqa: F401, fixtures
from tests.helpers.trainings import rewrite
from train.cli import main
from train.experiments import speed
from train.experiments.paper import TABLE2_ROWS, TABLE3
from train.run.checkpoint import load_model
from train.run.config import RunConfig
from train.run.folder import RunFolder
from train.run.storage import read_state
from train.text.pair_tokenizer import load_tokenizer


@pytest.mark.parametrize("preset", PRESETS)
def test_info_of_a_preset_prints_the_papers_figures(preset, capsys):
    assert main(["info", preset]) == 0
    text = capsys.readouterr().out
    config = RunConfig.from_dict({"model": {"preset": preset}})
    assert f"{config.transformer_config(config.data.vocab_size).n_parameters():,}" in text
    if preset in TABLE3:
        assert f"the paper: {TABLE3[preset]['params_millions']:g} million" in text


def test_every_preset_of_the_paper_has_figures():
    without_figures = {"parsing-wsj", "parsing-semi", "parsing-small", "tiny"}
    assert TABLE3.keys() | TABLE2_ROWS.keys() == PRESETS.keys() - without_figures
    assert all({"ppl", "bleu", "params_millions"} <= figures.keys() for figures in TABLE3.values())


def test_info_prints_the_papers_training_cost(capsys):
    for preset, cost in (("base", "3.3e+18"), ("big", "2.3e+19"), ("big-enfr", "2.3e+19")):
        assert main(["info", preset]) == 0
        assert cost in capsys.readouterr().out


def test_info_prints_the_figures_of_the_presets_own_language_pair(capsys):
    """Table 3 (newstest2013) and the parameter counts are those of English-German models."""
    expected = {"base": ["4.92, BLEU 25.8", "German: BLEU 27.3", "French: BLEU 38.1"],
                "big": ["4.33, BLEU 26.4", "German: BLEU 28.4"], "big-enfr": ["French: BLEU 41.8"],
                "A-h4": ["5.00, BLEU 25.5"]}  # fmt: skip
    for preset, ends in expected.items():
        assert main(["info", preset]) == 0
        quality = [line for line in capsys.readouterr().out.splitlines() if line.startswith("quality")]
        assert len(quality) == len(ends) and all(map(str.endswith, quality, ends))
    assert main(["info", "big-enfr"]) == 0 and "million" not in capsys.readouterr().out


def test_info_counts_the_updates_after_the_last_log_line(run, tmp_path, capfd):
    """A run that is shorter than one interval has no log line at all."""
    out = tmp_path / "run"
    shutil.copytree(run, out)
    totals = read_state(RunFolder(out).step_paths()[-1])["run"]
    for lines in (1, 0):  # a log line after an earlier update, none
        entry = {"kind": "train", "step": 1, "tokens": 7, "loss": 9.0, "tokens_per_second": 3.0, "seconds": 1.0}
        (out / "metrics.jsonl").write_text(f"{json.dumps(entry)}\n" * lines)
        state = {"window_loss": 12.0, "window_targets": 5, "window_tokens": 6, "window_seconds": 2.0, "seconds": 4.0}
        rewrite(RunFolder(out).step_paths()[-1], lambda s, state=state: s["run"].update(state))
        assert main(["info", str(out)]) == 0
        speed = f"{totals['tokens'] / 4:,.0f} tokens/s"  # the mean speed, not that of the window
        line = f"trained      6 updates, {totals['tokens']:,} tokens, loss 2.4000, {speed}"
        assert line in capfd.readouterr().out
        assert main(["plan", str(out)]) == 0 and f", {speed};" in capfd.readouterr().out


def test_the_output_of_info_config_is_a_valid_configuration(texts, tmp_path, capsys):
    assert main(["info", "tiny", "--config"]) == 0
    file = tmp_path / "my.toml"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    settings = [*SET, "--set", "train.max_steps=1", "--set", "train.precision=float64"]
    out = tmp_path / "run"
    assert main(["train", str(file), *data_options(texts), "--out", str(out), "--quiet", *settings]) == 0
    assert RunConfig.load(out / "config.toml").train.precision == "float64"


def test_info_sizes_the_model_that_train_would_build(texts, tmp_path, capsys):
    """`info` accepts the same configurations and --set options as `train`."""
    file = tmp_path / "my.toml"
    file.write_text('[model]\npreset = "tiny"\nn_layers = 1\n[data]\nvocabularies = "separate"\n', encoding="utf-8")
    settings = [*SET, "--set", "data.vocab_size=270", "--set", "train.max_steps=1"]
    for config in ("tiny", str(file)):
        out = tmp_path / f"run-{len(config)}"
        assert main(["train", config, *data_options(texts), "--out", str(out), "--quiet", *settings]) == 0
        n = load_model(out)[0].n_parameters()
        sizes = load_tokenizer(out / "tokenizer.json")
        capsys.readouterr()
        assert sizes.vocab_size == (sizes.src_vocab_size or 270) == 270
        assert main(["info", config, *settings]) == 0
        assert f"parameters   {n:,}\n" in capsys.readouterr().out
    assert main(["info", "tiny", "--vocab-size", "300", "--config"]) == 0
    assert "\nvocab_size = 300\n" in capsys.readouterr().out


def test_the_preset_tiny_fits_a_cpu():
    """With two cores, an update takes seconds."""
    tiny, base = (RunConfig.from_dict({"model": {"preset": preset}}) for preset in ("tiny", "base"))
    assert (tiny.data.vocab_size, tiny.train.batch_tokens, tiny.train.warmup_steps) == (8000, 4096, 1000)
    assert (base.data.vocab_size, base.train.batch_tokens, base.train.warmup_steps) == (37000, 25000, 4000)
    changed = RunConfig.from_dict({"model": {"preset": "tiny"}}, ["model.preset=base"])
    assert changed == base
    given = {"model": {"preset": "tiny"}, "data": {"vocab_size": 9712}, "train": {"batch_tokens": 2048}}
    config = RunConfig.from_dict(given)
    assert (config.data.vocab_size, config.train.batch_tokens) == (9712, 2048)


def test_info_describes_several_models_one_after_the_other(run, capfd):
    single = []
    for name in (str(run), "tiny"):
        assert main(["info", name]) == 0
        single.append(capfd.readouterr().out)
    assert main(["info", str(run), "tiny"]) == 0
    assert capfd.readouterr().out == f"name         {run}\n{single[0]}\nname         tiny\n{single[1]}"


def test_info_of_a_run_without_a_checkpoint_prints_what_is_known(run, tmp_path, capfd):
    out = tmp_path / "run"
    shutil.copytree(run, out)
    shutil.rmtree(out / "checkpoints")
    assert main(["info", str(out), str(run)]) == 0
    unfinished, finished = capfd.readouterr().out.split("\n\n")
    assert "\ncheckpoints  none yet\n" in unfinished and "commands load averaged" in finished
    assert [line for line in unfinished.splitlines()[1:] if not line.startswith("checkpoints")] == [
        line.removesuffix("  checkpoints/best") for line in finished.splitlines()[1:] if line[:6] != "checkp"
    ]
    for name in ("tokenizer.json", "metrics.jsonl"):  # the tokenizer is being trained
        (out / name).unlink()
    assert main(["info", str(out)]) == 0
    assert "\nvocabulary   300 tokens" in (printed := capfd.readouterr().out) and printed.endswith("none yet\n")
    assert_rejected(capfd, ["translate", "--model", out], "no checkpoints in", "; try again after more updates, or a")


def test_info_uses_the_vocabulary_of_a_data_folder(run, texts, tmp_path, capfd):
    out = tmp_path / "own"
    sides = [f"--train-{side}={texts}/train.{side}" for side in ("src", "tgt")]
    assert main(["data", "own", *sides, "--vocab-size=275", "--keep-duplicates", "--quiet", f"--out={out}"]) == 0
    capfd.readouterr()
    for options in ([], ["--set", f"data.tokenizer={out / 'tokenizer.json'}"]):
        assert main(["info", "tiny", "--data", str(out), *options]) == 0
        assert "vocabulary   275 tokens," in capfd.readouterr().out
    assert_rejected(capfd, ["info", run, "--data", out], "--data applies only to presets and configuration files")
    assert_rejected(capfd, ["info", "tiny", "--data", tmp_path], "expected a folder written by `npx-transformer data`")


@pytest.mark.parametrize(
    "fields",
    [
        {"pad_id": 299, "bos_id": 299, "eos_id": 0, "unk_id": 1, "decoder_start": "pad", "suppressed_ids": (2, 7)},
        {"src_vocab_size": 12, "n_outputs": 20},
        {"positions": "learned", "max_positions": 10},
    ],
)
def test_measured_sentences_have_tokens_that_the_model_can_read(fields):
    """Imported models have other special ids, two vocabularies differ in size, and positions may be few."""
    config = RunConfig.from_dict({}, ["train.batch_tokens=300"])
    sizes = {"d_model": 8, "d_ff": 8, "n_heads": 2, "n_layers": 1}
    c = TransformerConfig(vocab_size=300, **sizes, **fields)
    updater, batch = speed.build_updater(c, config)
    updater.compute_gradient([batch], 1)
    special = {c.pad_id, c.bos_id, c.eos_id, c.unk_id, *c.suppressed_ids}
    source_size, target_size = c.src_vocab_size or c.vocab_size, c.resolved_n_outputs
    for rows, size in ((batch.src[:, :-1], source_size), (batch.tgt[:, 1:-1], target_size)):
        assert special.isdisjoint(rows.flat) and rows.max() < size and len({*rows.flat}) > min(7, size // 2)
    length = min(30, c.max_positions if c.positions == "learned" else 30)
    assert batch.shape == (300 // length, length, length) and batch.n_tokens == 600


def test_info_estimates_the_activations_of_a_batch(monkeypatch, capfd):
    """The estimate for larger batches is extrapolated; without --measure, a line says what is missing."""
    shape = ["model.d_model=16", "model.d_ff=32", "model.n_heads=2", "model.n_layers=2"]
    sizes = []
    for limit in (2048, 600):
        monkeypatch.setattr(speed, "MAX_BATCH_TOKENS", limit)
        config = RunConfig.from_dict({}, [*shape, "train.batch_tokens=1500"])
        sizes.append(speed.measure_activations(config.transformer_config(300), config))
    assert sizes[1] == pytest.approx(sizes[0], rel=0.05)
    states = 2 * config.model.n_layers * 1500 * 16 * 4  # bytes of the outputs of all layers
    assert 5 * states < sizes[0] < 100 * states
    settings = [part for key in (*shape, "train.batch_tokens=1500") for part in ("--set", key)]
    assert main(["info", "base", *settings, "--vocab-size=300", "--measure"]) == 0
    lines = capfd.readouterr().out.splitlines()
    line = next(line for line in lines if line.startswith("activations"))
    assert line == f"activations  about {sizes[1] / 2**10:,.0f} KiB for a batch of 1,500 source and 1,500 target tokens"
    assert main(["info", "base", *settings]) == 0
    text = capfd.readouterr().out
    assert "; activations not included\n" in text and "\nactivations" not in text


def test_a_time_has_a_unit_that_suits_it(capsys):
    for speed_, words in ((1e6, "5.0 seconds for 100 updates"), (4e4, "2 minutes for"), (1e3, "1.4 hours for"),
                          (10, "138.9 hours (5.8 days)")):  # fmt: skip
        assert main(["info", "base", "--set=train.max_steps=100", f"--tokens-per-second={speed_}"]) == 0
        assert f"time         {words}" in capsys.readouterr().out


def test_the_perplexity_of_a_diverged_run_has_three_digits(run, tmp_path, capfd):
    out = tmp_path / "run"
    shutil.copytree(run, out)
    entry = {"kind": "valid", "step": 1, "loss": 34407.0, "perplexity": 1.0142320547350045e304}
    RunFolder(out).metrics_file.write_text(json.dumps(entry) + "\n", encoding="utf-8")
    assert main(["info", str(out)]) == 0
    assert "1 34407.0000     >1e+300\n" in capfd.readouterr().out
