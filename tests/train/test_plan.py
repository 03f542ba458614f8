"""Laws of the step time estimates, and the command `plan`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import TransformerConfig
from train.cli import plan
from train.cli.main import main
from train.cli.models import resolve_model
from train.experiments.plan import LINKS, all_reduce_seconds, estimate_step
from train.learn.parallel.reducer import BUCKET
from train.run.folder import RunFolder

SIZES, FRACTIONS, SECONDS = st.floats(1, 1e10), st.floats(0, 1), st.floats(1e-3, 10)
GPUS, LINK = st.integers(1, 4096), st.sampled_from([*LINKS.values()])


@given(SIZES, FRACTIONS, SECONDS, st.integers(1, 8), GPUS, LINK)
def test_step_time_is_between_compute_and_compute_plus_reduction(
    size, late, micro, gradient_accumulation_steps, gpus, link
):
    p = estimate_step(size, late, micro, gradient_accumulation_steps, gpus, link)
    exchange = 2 * link.latency * (gpus > 1)
    assert (
        gradient_accumulation_steps * micro + exchange
        <= p.step
        <= (gradient_accumulation_steps * micro + p.reduction + exchange) * (1 + 1e-12)
    )
    assert 0 < p.efficiency <= 1
    if gpus == 1:
        assert p.efficiency == 1
    more = estimate_step(size, late, micro, gradient_accumulation_steps + 1, gpus, link)
    assert more.efficiency >= p.efficiency * (1 - 1e-12)  # fewer reductions for the same tokens
    after = estimate_step(size, late, micro, gradient_accumulation_steps, gpus, link, backward=0)
    assert after.exposed == pytest.approx(p.reduction + exchange) and p.step <= after.step * (1 + 1e-12)


@given(SIZES, st.integers(2, 4096), LINK)
def test_reduction_time_is_bounded_by_bandwidth(size, gpus, link):
    bytes_alone = 2 * (gpus - 1) / gpus * size / link.bandwidth
    assert estimate_step(size, 0.3, 1.0, 1, gpus, link).reduction >= bytes_alone * (1 - 1e-12)
    assert all_reduce_seconds(size, gpus, link) >= bytes_alone * (1 - 1e-12)
    ring = 2e12 * (gpus - 1) / gpus / link.bandwidth
    assert all_reduce_seconds(1e12, gpus, link._replace(latency=0)) == pytest.approx(ring)  # the ring sends less
    assert all_reduce_seconds(1, 1024, link) == pytest.approx(20 * link.latency, rel=1e-3)  # the tree has fewer steps


def test_against_a_calculation_by_hand():
    link = LINKS["ib"]._replace(bandwidth=BUCKET / 1.5, latency=0.25)  # a bucket over 4 ranks: 1.5 x 1.5 s and 2 x 0.25
    p = estimate_step(8 * BUCKET, 0.25, 3.0, 2, 4, link)
    assert (p.compute, p.reduction, p.all_reduce) == (6.0, 22.0, 19.5)
    assert p.exposed == 22 - 2 * (1 - 1 / 6) + 0.5  # overlaps with backward once the first of 6 buckets is ready
    two, three = (estimate_step(8 * BUCKET, late, 300.0, 2, 4, link) for late in (0.25, 0.26))
    assert two.exposed == 2 * 2.75 + 0.5  # the embedding is in the last two buckets
    assert three.exposed == 3 * 2.75 + 0.5  # and in a small part of a third
    small = estimate_step(BUCKET / 2, 0.0, 300.0, 1, 4, link)
    assert small.exposed == small.reduction + 0.5  # one bucket waits for the end of backward


@given(SIZES, FRACTIONS, SECONDS, st.integers(2, 4096), LINK)
def test_sharding_and_narrow_gradients(size, late, micro, gpus, link):
    """Sharding scatters gradients during backward and gathers weights after the update: the same bytes in total."""
    p, shard = (estimate_step(size, late, micro, 1, gpus, link, gathered_bytes=gathered) for gathered in (0.0, size))
    assert shard.reduction == pytest.approx(p.reduction) and shard.exposed >= p.exposed * (1 - 1e-9)
    assert shard.exposed >= p.reduction / 2 * (1 - 1e-9)  # the gather does not overlap with backward
    half = estimate_step(size, late, micro, 1, gpus, link._replace(latency=0), wire_fraction=0.5)
    wide = estimate_step(size, late, micro, 1, gpus, link._replace(latency=0))
    assert half.reduction == pytest.approx(wide.reduction / 2) and half.exposed <= wide.exposed * (1 + 1e-12)


def test_the_command_uses_the_settings(capsys):
    sums = {}
    for key in ("seed=1", "precision=bf16", "reduce_dtype=bf16"):
        settings = ["--set", "train.shard_optimizer=true", "--set", f"train.{key}"]
        assert main(["plan", "base", "--gpus", "8", "--tokens-per-second", "1000000", *settings]) == 0
        out = capsys.readouterr().out
        assert "each updates its shard (train.shard_optimizer)" in out and ("sent as bf16" in out) == (key[:3] == "red")
        sums[key] = float(out.split("  GPUs")[1].splitlines()[1].split()[-2])
    assert sums["precision=bf16"] == sums["reduce_dtype=bf16"] == pytest.approx(sums["seed=1"] * 3 / 4, rel=0.02)


def test_the_command(capsys):
    assert main(["plan", "base", "--gpus", "1,8", "--link", "ethernet", "--tokens-per-second", "100000"]) == 0
    out = capsys.readouterr().out
    assert "240 MiB, of which 30%" in out and "0.4 s per step" in out and "100.0%" in out
    assert "cost" not in out


@pytest.mark.parametrize(
    ("model", "n_early"),
    [
        ({"vocab_size": 5000}, 5000),
        ({"vocab_size": 10, "src_vocab_size": 5000}, 5010),
        ({"vocab_size": 10, "src_vocab_size": 5000, "architecture": "encoder", "positions": "learned"}, 5010 + 1024),
    ],
)
def test_the_parameters_before_the_layers_are_ready_last(monkeypatch, capsys, model, n_early):
    config = TransformerConfig(d_model=16, d_ff=16, n_heads=2, n_layers=10, **model)
    _, run_config, _ = resolve_model("base", None)
    monkeypatch.setattr(plan, "resolve_model", lambda *args: (None, run_config, config))
    assert main(["plan", "base", "--gpus", "8", "--tokens-per-second", "100"]) == 0
    percentage = round(100 * n_early * 16 / config.n_parameters())
    assert 20 < percentage < 90 and f"of which {percentage}% is ready last" in capsys.readouterr().out


def test_the_speed_of_several_ranks_is_not_that_of_one_gpu(copied, capsys):
    assert main(["plan", str(copied)]) == 0
    file = RunFolder(copied).metrics_file
    file.write_text(file.read_text().replace('"kind": "train",', '"kind": "train", "network": 0.1,'))
    capsys.readouterr()
    assert main(["plan", str(copied)]) == 2
    assert "--tokens-per-second, measured on one GPU, is missing" in capsys.readouterr().err


def test_the_suggestion_suits_the_task(tmp_path, capsys):
    """`info --measure` supports only translation."""
    config = tmp_path / "text.toml"
    config.write_text('[model]\narchitecture = "decoder"\n[data]\ntask = "language"\n')
    for spec, suggestion in (("base", "`npx-transformer info base --measure`"), (config, "--tokens-per-second X")):
        assert main(["plan", str(spec)]) == 2
        assert capsys.readouterr().err.endswith(f"is missing; try {suggestion}\n")


def test_hours_and_cost_of_a_training(capsys):
    settings = ["--set", "train.batch_tokens=1800", "--set", "train.max_steps=1000"]
    link = ["--bandwidth", "1e6", "--latency", "0"]  # communication takes no time
    assert (
        main(["plan", "base", "--gpus", "1,4", "--tokens-per-second", "100", *settings, *link, "--price", "2.5"]) == 0
    )
    rows = [line.split() for line in capsys.readouterr().out.split("of 1,000 updates\n")[1].splitlines()]
    assert rows[0] == ["1", "10.00", "10.0", "25.00"] and rows[1] == ["4", "10.00", "40.0", "100.00"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["bas", "--tokens-per-second", "1"],
            "expected a run folder, CONFIG.toml or a preset; got a path that does not exist; try base",
        ),
        (["base"], "measured on one GPU, is missing; try `npx-transformer info base --measure`\n"),
        (["base", "--gpus", "0,x", "--tokens-per-second", "1"], "--gpus: expected numbers from 1"),
        (["base", "--set", "model.n_layers=12"], "--set: expected a key of [train]; got model.n_layers=12; try "),
        (["base", "--price", "-1", "--tokens-per-second", "1"], "--price: expected"),
        (["base", "--set", "train.shard_optimiser=1"], "try train.shard_optimizer"),
        (["base", "--link", "wire", "--tokens-per-second", "1"], "--link: expected"),
    ],
)
def test_invalid_options_are_reported_on_one_line(capsys, arguments, message):
    assert main(["plan", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
