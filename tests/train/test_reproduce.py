"""`reproduce`: training, interruption, failed rows, invalid arguments and output of the paper's tables."""

import json
import math
import os
import shutil
import signal
import sys
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from models import TransformerConfig
from tests.helpers.marian_folders import write_folder
from tests.helpers.trainings import Crash, write_pairs
from train import RunConfig, train
from train.cli import main
from train.errors import UserError
from train.experiments import comparison, plot, processes, speed, table2, table3
from train.experiments.comparison import CLAIMS, compare
from train.experiments.paper import TABLE3
from train.formats import import_folder
from train.learn.trainer import Trainer
from train.run.checkpoint import read_state
from train.run.folder import RunFolder

SMALL = ["model.d_model=8", "model.d_ff=8", "model.d_k=4", "model.d_v=4", "model.n_layers=1", "data.vocab_size=280"]
SMALL += ["train.batch_tokens=100", "search.max_extra_tokens=2", "search.beam_size=2"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    write_pairs(folder, "train", 30, seed=1)
    write_pairs(folder, "valid", 4, seed=2)
    sides = (("src", "en"), ("tgt", "de"))
    return {f"{part}_{side}": str(folder / f"{part}.{end}") for part in ("train", "valid") for side, end in sides}


def run(out, texts, rows=("base", "A-h4"), steps=4, overrides=SMALL, **options):
    return table3.run_table3(out, texts, "tiny", rows, steps, overrides, progress=False, **options)


def results_of(compared):
    """Return the results that must be equal in two runs of the same rows."""
    clocks = {"seconds"}
    ours = {entry["row"]: entry["ours"] for entry in compared["rows"] if entry["ours"]}
    return {row: {key: value for key, value in result.items() if key not in clocks} for row, result in ours.items()}


def test_table_3_trains_scores_and_writes_rows(tmp_path, texts, capfd):
    pytest.importorskip("matplotlib")
    options = [f"--{name.replace('_', '-')}={path}" for name, path in texts.items()]
    sets = [part for setting in SMALL for part in ("--set", setting)]
    arguments = ["reproduce", "table3", "--out", str(tmp_path / "t"), "--scale", "tiny", "--steps", "2", "--quiet"]
    assert main([*arguments, "--rows", "base, big", *options, *sets]) == 0
    page = capfd.readouterr().out
    assert page == (tmp_path / "t/table3.md").read_text("utf-8")
    assert "not comparable with the paper's" in page and (tmp_path / "t/table3.png").stat().st_size > 1000
    written = json.loads((tmp_path / "t/table3.json").read_text("utf-8"))
    base, big = written["rows"][:2]
    assert (base["ours"]["steps"], big["ours"]["steps"]) == (2, 6)  # 100,000 and 300,000 in the paper
    assert big["paper"]["bleu"] == 26.4 and big["difference"]["paper"]["bleu"] == pytest.approx(0.6)
    quotient = big["ours"]["perplexity"] / base["ours"]["perplexity"]
    assert big["difference"]["ours"]["nats"] == pytest.approx(math.log(quotient))
    assert [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| b")] == ["| base", "| big"]
    assert len([*(tmp_path / "t/rows/big/checkpoints").glob("step-*")]) == 1  # older checkpoints are deleted
    assert "belong to the average of the last\n2 or 5 checkpoints. Parameters" in page


def test_one_checkpoint_is_not_called_five(tmp_path, texts):
    run(tmp_path, texts, ("base",), overrides=[*SMALL, "train.keep_last=1"])
    assert "to the average of the last\n1 checkpoint. Parameters" in (tmp_path / "table3.md").read_text("utf-8")


def test_ctrl_c_suggests_the_same_command(tmp_path, texts, monkeypatch, capfd):
    monkeypatch.setattr(Trainer, "_run_update", lambda self: os.kill(os.getpid(), signal.SIGINT))
    options = [f"--{name.replace('_', '-')}={path}" for name, path in texts.items()]
    sets = [part for setting in SMALL for part in ("--set", setting)]
    arguments = ["reproduce", "table3", "--out", str(tmp_path / "t"), "--scale", "tiny", "--rows", "base", "--quiet"]
    assert main([*arguments, *options, *sets]) == 130
    error = capfd.readouterr().err
    assert "stopped by a signal after step " in error and "--resume" not in error
    assert error.endswith("\ninterrupted; run the same command again\n")


@pytest.mark.slow
def test_an_interrupted_table_continues_to_the_same_results(tmp_path, texts, monkeypatch):
    complete = run(tmp_path / "complete", texts)
    updates = []
    update = Trainer._run_update

    def stopped(self):
        updates.append(1)
        if len(updates) == 7:  # in the second row, which has a checkpoint after each update
            raise Crash
        return update(self)

    monkeypatch.setattr(Trainer, "_run_update", stopped)
    monkeypatch.setattr(processes, "Exception", (), raising=False)  # simulate a kill: no exception handler runs
    with pytest.raises(Crash):
        run(tmp_path / "stopped", texts)
    assert [*table3.results(tmp_path / "stopped")] == ["base"]
    assert results_of(run(tmp_path / "stopped", texts)) == results_of(complete)
    assert len(updates) == 7 + 2  # finished updates are not repeated
    assert results_of(run(tmp_path / "stopped", texts)) == results_of(complete) and len(updates) == 9


def test_a_failed_row_is_retried_and_others_are_trained(tmp_path, texts, monkeypatch, capfd):
    run_row = table3.run_row
    failing_rows = ["A-h4"]

    def failing(row, *rest):
        if row in failing_rows:
            raise UserError("training: expected a finite loss; got nan; try less")
        return run_row(row, *rest)

    monkeypatch.setattr(table3, "run_row", failing)
    with pytest.raises(UserError, match=r"1 of 3 rows failed: A-h4 .*finite loss.*; run the same command"):
        run(tmp_path, texts, ("base", "A-h4", "A-h16"), steps=1)
    assert [*table3.results(tmp_path)] == ["base", "A-h16"]
    assert "A-h4 failed: training: expected a finite loss" in (tmp_path / "table3.md").read_text("utf-8")
    failing_rows.clear()
    assert len(results_of(run(tmp_path, texts, ("base", "A-h4", "A-h16"), steps=1))) == 3
    assert "failed" not in (tmp_path / "table3.md").read_text("utf-8")


@pytest.mark.slow
def test_two_seeds_in_two_processes_are_averaged_and_compared(tmp_path, texts, capfd):
    rows = ("base", "A-h4")
    two = {"seeds": 2}
    run(tmp_path / "one", texts, rows, steps=2)
    alone = run(tmp_path / "one", texts, rows, steps=2, **two)  # only the second seeds are trained
    assert capfd.readouterr().err.count("row ") == 4
    compared = run(tmp_path / "two", texts, rows, steps=2, n_jobs=2, **two)
    assert capfd.readouterr().err.count("row ") == 4

    def without_clocks(entry):
        trainings = [{**training, "seconds": 0} for training in entry["ours"].get("trainings", [])]
        return {**entry, "ours": entry["ours"] | {"trainings": trainings, "seconds": 0}}

    assert [*map(without_clocks, compared["rows"])] == [*map(without_clocks, alone["rows"])]
    base = compared["rows"][0]["ours"]
    first, second = base["trainings"]
    assert first["perplexity"] != second["perplexity"]
    assert base["perplexity"] == pytest.approx(math.sqrt(first["perplexity"] * second["perplexity"]))
    page = (tmp_path / "two/table3.md").read_text("utf-8")
    assert f"| {base['perplexity']:.2f} ± " in page and "with two runs each" in page
    assert "does not measure" not in page


def give_up(message):
    raise UserError(message)


@pytest.mark.parametrize("jobs", [1, 2])
def test_tasks_report_their_errors(jobs, capfd):
    tasks = {"good": partial(str, 1), "bad": partial(give_up, "expected x; got y"), "worse": partial(int, "?")}
    if jobs > 1:
        tasks["killed"] = partial(os._exit, 3)
    errors = dict(processes.run_parallel(tasks, jobs))
    assert errors.pop("good") == "" and errors.pop("bad") == "expected x; got y"
    assert errors.pop("worse").startswith("ValueError: invalid literal") and "Traceback" in capfd.readouterr().err
    assert errors == ({"killed": "the process ended with exit status 3"} if jobs > 1 else {})


def test_ctrl_c_cannot_interrupt_the_start_of_a_process(tmp_path, monkeypatch, capfd):
    """Ctrl-C also reaches processes that are still importing modules; only the parent may handle it."""
    interrupt = (
        "import os, signal, sys\nif '--multiprocessing-fork' in sys.orig_argv: os.kill(os.getpid(), signal.SIGINT)"
    )
    (tmp_path / "sitecustomize.py").write_text(interrupt)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.getenv("PYTHONPATH")])]))
    assert [*processes.run_parallel({"good": partial(str, 1)}, 2)] == [("good", "")]
    assert capfd.readouterr().err == ""


def interrupt_parent_and_exit():
    os.kill(os.getppid(), signal.SIGINT)
    os._exit(3)


def test_a_process_that_a_signal_stops_has_not_failed():
    with pytest.raises(KeyboardInterrupt):
        for ended in processes.run_parallel({"stopped": interrupt_parent_and_exit}, 2):
            pytest.fail(str(ended))


@given(st.floats(0, 3), st.integers(1, 4))
def test_a_claim_is_unclear_within_two_standard_errors(gap, trainings):
    """In both measures, base is better than A-h1 by `gap` standard errors of a difference."""
    error = math.sqrt(2 / trainings)  # the standard error of a difference between two means, for deviations of 1
    rows = {"base": gap * error, "A-h1": 0.0}
    results = {
        row: {"perplexity": math.exp(-value), "bleu": value, "parameters": 1, "averaged": {},
              "trainings": [{}] * trainings, "deviation": {"bleu": 1.0, "nats": 1.0}}
        for row, value in rows.items()
    }  # fmt: skip
    assume(abs(gap - 2) > 1e-6)
    [claim] = compare(results)["claims"]
    assert claim["ours"] == ({"ppl": True, "bleu": True} if gap > 2 else {"ppl": None, "bleu": None})
    counts = compare(results)["pairs"]["bleu"]
    assert counts["clear"] == counts["clear_alike"] == (gap > 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": ["A-h3"]}, "--rows: expected one of base, .*; got 'A-h3'; try A-h32"),
        ({"steps": 5}, "expected steps = 4, as in the finished rows; got 5; try a new --out"),
        ({"overrides": [*SMALL, "train.seed=2"]}, "expected settings = .*train.seed=2.*; try a new --out"),
        ({"texts": {"train_src": "nowhere"}}, "nowhere: expected a text file"),
        ({"texts": {"valid_src": "", "valid_tgt": ""}}, "valid_src: missing validation text"),
        ({"overrides": ["train.sed=2"]}, r"unknown key of \[train\]; try train.seed"),
    ],
)
def test_invalid_arguments_raise_before_training(tmp_path, texts, monkeypatch, changes, message):
    monkeypatch.setattr(table3, "run_row", lambda *_: None)
    run(tmp_path, texts, rows=["base"])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(table3, "run_row", lambda *_: pytest.fail("trained"))
    with pytest.raises(UserError, match=message) as error:
        run(tmp_path, **{**changes, "texts": texts | changes.get("texts", {})})
    assert "\n" not in str(error.value)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_another_folder_is_rejected_and_not_modified(tmp_path, texts):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(
        UserError,
        match="expected a new folder, or an earlier output folder of this command; got a folder with other files",
    ):
        run(tmp_path, texts)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("arguments", [["table9"], ["table3", "--out", "x"], ["table3"]])
def test_an_unknown_table_or_a_missing_option_is_reported_on_one_line(arguments, capfd):
    assert main(["reproduce", *arguments]) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and "--help" in err


@pytest.mark.parametrize("row", TABLE3)
def test_rows_differ_from_base_alike_at_each_scale(row, texts):
    """A row changes the same settings by the same factors at both scales."""
    at = {}
    for scale, size in table3.SCALES.items():
        config, base = (table3.row_config(name, scale, 1000, texts, []) for name in (row, "base"))
        shape, other = config.transformer_config(37000), base.transformer_config(37000)
        sizes = ("d_model", "d_ff", "key_size", "value_size", "n_layers")
        at[scale] = [getattr(shape, name) / getattr(other, name) for name in sizes], shape.n_heads, shape.dropout
        at[scale] += config.train.label_smoothing, config.train.max_steps / base.train.max_steps, shape.positions
        assert shape.d_model * size.width_divisor == TransformerConfig.preset(row, 37000).d_model
    assert at["paper"] == at["tiny"]


def test_the_paper_scale_has_the_papers_configuration(texts):
    for row in TABLE3:
        config = table3.row_config(row, "paper", 100_000, texts, [])
        assert config.transformer_config(37000) == TransformerConfig.preset(row, 37000)
        assert config.train.max_steps == (300_000 if row == "big" else 100_000)
        assert (config.train.batch_tokens, config.train.warmup_steps, config.data.vocab_size) == (25_000, 4000, 37_000)


@given(st.sets(st.sampled_from([*TABLE3]), min_size=1), st.floats(0.5, 2), st.floats(-5, 5))
def test_the_papers_results_agree_with_themselves(rows, factor, more):
    """Shifted copies of the paper's results confirm all its claims and the order of all pairs."""
    results = {
        row: {"perplexity": of["ppl"] * factor, "bleu": of["bleu"] + more, "parameters": 1, "averaged": {}}
        for row, of in TABLE3.items()
        if row in rows
    }
    compared = compare(results)
    assert all(pairs["alike"] == pairs["pairs"] and not pairs["ties"] for pairs in compared["pairs"].values())
    assert all(claim["ours"] == claim["paper"] for claim in compared["claims"])
    assert len(compared["claims"]) == sum({*order} <= rows for order in CLAIMS.values())
    for entry in compared["rows"]:
        assert ("ours" in entry["difference"]) == (bool(entry["ours"]) and "base" in rows)
        if "ours" in entry["difference"]:
            assert entry["difference"]["ours"] == pytest.approx(entry["difference"]["paper"], abs=1e-9)


def test_ties_are_counted_apart():
    """A pair of rows with equal results is a tie and agrees with no order in the paper."""
    rows = {"base": 0.0, "A-h1": 0.0, "A-h4": 1.0}  # the paper: 25.8, 24.9, 25.5
    results = {
        row: {"perplexity": 5.0, "bleu": bleu, "parameters": 1, "averaged": {"perplexity": 5.0, "bleu": bleu},
              "steps": 1, "seconds": 1, "signature": "s"}
        for row, bleu in rows.items()
    }  # fmt: skip
    compared = compare(results)
    assert compared["pairs"]["ppl"] == {"pairs": 3, "alike": 0, "ties": 3}
    assert compared["pairs"]["bleu"] == {"pairs": 3, "alike": 1, "ties": 1}
    page = "\n".join(comparison.markdown({"scale": "tiny", **compared, "failed": {}}, (8, 2), False))
    assert "different perplexity in the paper, 3 are\nequal here; of the other 0, 0 have the same order." in page
    assert "different BLEU in the paper, 1 are\nequal here; of the other 2, 1 (50%) have the same order." in page


def test_without_matplotlib_the_picture_is_skipped(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    row = {"perplexity": 5.0, "bleu": 20.0, "parameters": 10, "averaged": {"perplexity": 4.0, "bleu": 21.0}}
    row |= {"steps": 3, "seconds": 1.0, "signature": "s"}
    comparison.write_comparison(tmp_path, {"base": row}, "tiny", (4, 2), {})
    assert "matplotlib is not installed; try pip install" in capfd.readouterr().err
    page = (tmp_path / "table3.md").read_text("utf-8")
    assert "5.00 (4.00)" in page and "table3.png" not in page and not (tmp_path / "table3.png").exists()


# ---- Table 2


@pytest.fixture(scope="module")
def trained(texts, tmp_path_factory):
    """Return a run of three updates with its prepared arrays."""
    out = tmp_path_factory.mktemp("run") / "a"
    settings = [*SMALL, "train.max_steps=3", "train.log_every=3", "train.validate_score=false"]
    train(RunConfig.from_dict({"data": dict(texts)}, settings), out, progress=False)
    return out


def test_table_2_has_the_papers_rows_and_both_costs(trained, texts, tmp_path, capfd, monkeypatch):
    options = [f"--en-de={trained}", f"--en-de-src={texts['valid_src']}", f"--en-de-ref={texts['valid_tgt']}"]
    arguments = ["reproduce", "table2", "--out", str(tmp_path), *options, "--tflops", "P100", "--devices", "8"]
    assert main(arguments) == 0
    page = capfd.readouterr().out
    for line in ("| ByteNet | 23.75 | - | - | - |", "| MoE | 26.03 | 40.56 | 2.0e19 | 1.2e20 |",
                 "| GNMT + RL, ensemble | 26.30 | 41.16 | 1.8e20 | 1.1e21 |"):  # fmt: skip
        assert line in page
    assert page.count("| Transformer (b") == 2 and "ensemble" in page and "8 x 9.5 TFLOP/s" in page
    ours = json.loads((tmp_path / "table2.json").read_text("utf-8"))["ours"]["en-de"]
    entry = read_state(RunFolder(trained).step_paths()[-1])["run"]
    assert ours["by_time"] == pytest.approx(entry["seconds"] * 8 * 9.5e12)
    shape = RunConfig.load(trained / "config.toml").transformer_config(vocab_size_of(trained))
    low, high = (shape.training_flops(*sides) for sides in ((entry["tokens"], 0), (0, entry["tokens"])))
    assert min(low, high) < ours["counted"] < max(low, high)
    meta = json.loads((trained / "data/train/meta.json").read_text("utf-8"))
    source = (meta["tokens"]["src"] + 30) / (sum(meta["tokens"].values()) + 60)
    expected = shape.training_flops(round(entry["tokens"] * source), round(entry["tokens"] * (1 - source)))
    assert ours["counted"] == pytest.approx(expected)
    translations = (tmp_path / "en-de.translated").read_text("utf-8").split("\n")[:-1]
    monkeypatch.setattr(table2, "best_translations", lambda *_, **__: pytest.fail("translated twice"))
    assert main(arguments) == 0 and len(translations) == 4
    capfd.readouterr()
    for wrong, message in (
        ([*arguments[:-3], "H100x"], "--tflops: expected a number, or one of K80"),
        ([*arguments, "--en-fr", str(trained)], "try --en-fr, --en-fr-src and --en-fr-ref"),
    ):
        assert main(wrong) == 2 and message in capfd.readouterr().err
    (mine := tmp_path / "mine").mkdir()
    (mine / "table2.md").write_text("mine")
    assert main([*arguments[:3], str(mine), *arguments[4:]]) == 2
    assert (
        "expected a new folder, or an earlier output folder of this command; got a folder with other files"
        in capfd.readouterr().err
    )
    assert [path.read_text() for path in mine.iterdir()] == ["mine"]


def test_table_2_translates_again_after_a_change(trained, texts, tmp_path, monkeypatch):
    calls = []
    translate = table2.best_translations

    def count_and_translate(*args, **options):
        calls.append(1)
        return translate(*args, **options)

    monkeypatch.setattr(table2, "best_translations", count_and_translate)
    shutil.copytree(trained, tmp_path / "run")
    shutil.copy(texts["valid_src"], tmp_path / "src")
    run = table2.TrainedRun(tmp_path / "run", tmp_path / "src", texts["valid_tgt"])
    file, config = tmp_path / "en-de.translated", tmp_path / "run/config.toml"
    expected = table2.translate_test(file, run)
    changes = [
        lambda: shutil.copy(texts["valid_tgt"], file),
        lambda: file.write_text(""),
        lambda: file.with_name(f"{file.name}.json").unlink(),
        lambda: config.write_text(config.read_text().replace("\nbeam_size = ", "\nbeam_size = 1")),
        lambda: (tmp_path / "src").write_text("one\n" * 4),
    ]
    for n, change in enumerate(changes, 2):
        change()
        for _ in range(2):
            assert (table2.translate_test(file, run) == expected or n > 4) and len(calls) == n


def test_table_2_counts_the_updates_after_the_last_log_line(trained, texts, tmp_path):
    """The cost covers all updates, even of a run that is shorter than one interval of log lines."""
    out = tmp_path / "run"
    shutil.copytree(trained, out)
    state = read_state(RunFolder(out).step_paths()[-1])["run"]
    cost = table2.training_cost(out)
    (out / "metrics.jsonl").unlink()
    assert table2.training_cost(out) == cost
    assert {name: cost[name] for name in ("step", "tokens", "seconds")} == {
        name: state[name] for name in ("step", "tokens", "seconds")
    }
    shutil.rmtree(RunFolder(out).step_paths()[-1])
    with pytest.raises(UserError, match="no checkpoints in"):
        table2.training_cost(out)


def test_table_2_checks_the_test_text_before_it_translates(trained, texts, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(table2, "best_translations", lambda *_, **__: pytest.fail("translated"))
    options = [f"--en-de={trained}", f"--en-de-src={texts['valid_src']}", f"--en-de-ref={texts['train_tgt']}"]
    assert main(["reproduce", "table2", "--out", str(tmp_path / "out"), *options]) == 2
    error = capfd.readouterr().err
    assert "expected equal numbers of lines, line i translating line i; got 4 and 30; try" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_table_2_checks_the_training_costs_before_it_translates(trained, texts, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(table2, "best_translations", lambda *_, **__: pytest.fail("translated"))
    write_folder(tmp_path / "hf")
    import_folder(tmp_path / "hf", tmp_path / "imported", pytest.fail)
    (checkpoint,) = RunFolder(trained).step_paths()
    shutil.copytree(trained, tmp_path / "averaged")
    RunFolder(tmp_path / "averaged").step_paths()[0].rename(RunFolder(tmp_path / "averaged").averaged_path)
    for run, reason in (
        (tmp_path / "imported", "got an imported run, which has no training history; try a run that `train` has"),
        (checkpoint, f"got a checkpoint; try {trained}\n"),
        (tmp_path / "averaged", "got a run with averaged weights only; try a run with its step-N checkpoints"),
    ):
        options = [f"--{pair}{end}" for pair in ("en-de", "en-fr") for end in ("", "-src", "-ref")]
        values = [trained, texts["valid_src"], texts["valid_tgt"], run, texts["valid_src"], texts["valid_tgt"]]
        arguments = [str(word) for words in zip(options, values, strict=True) for word in words]
        assert main(["reproduce", "table2", "--out", str(tmp_path / "out"), *arguments]) == 2
        assert reason in capfd.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize("rows", [",", "", " , "])
def test_a_list_without_rows_is_rejected(rows, texts, tmp_path, capfd):
    options = [f"--{name.replace('_', '-')}={path}" for name, path in texts.items()]
    assert main(["reproduce", "table3", "--out", str(tmp_path / "t"), "--rows", rows, *options]) == 2
    assert "--rows: expected names of rows; got" in capfd.readouterr().err and not (tmp_path / "t").exists()


def vocab_size_of(run):
    return json.loads((RunFolder(run).step_paths()[-1] / "state.json").read_text("utf-8"))["model"]["vocab_size"]


# ---- training time


def test_training_time_from_a_given_speed(capfd):
    assert main(["info", "base", "--tokens-per-second", "1e5"]) == 0
    assert "time         13.9 hours for 100,000 updates at 100,000 tokens/s, as given" in capfd.readouterr().out
    both = ["--measure", "--tokens-per-second", "9"]
    for arguments, message in ((["--tokens-per-second", "0"], "above 0"), (both, "cannot be combined")):
        assert main(["info", "base", *arguments]) == 2 and message in capfd.readouterr().err


def test_measure_speed_takes_the_fastest_update(texts, monkeypatch):
    clock = iter([0.0, 9.0, 10.0, 10.5, 20.0, 20.25, 30.0, 31.0])
    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    config = RunConfig.from_dict({}, [*SMALL, "train.batch_tokens=100"])
    tokens_per_second = speed.measure_speed(config.transformer_config(300), config)
    assert tokens_per_second == 3 * 2 * 30 / 0.25  # 3 pairs of 30 tokens per side; the fastest step after the warmup
    language = RunConfig.from_dict({"model": {"architecture": "decoder"}, "data": {"task": "language"}})
    with pytest.raises(UserError, match="expected a translation model; got a language model"):
        speed.measure_speed(language.transformer_config(300), language)
