"""The benchmarks run: each of them ours alone and as small as can be. What they found: benchmarks/RESULTS.md."""

import json
import sys

import pytest

import npx
from benchmarks import growth, language_step, train_step, translate

WIDTHS = "--d-model 8 --heads 2 --d-ff 16 --layers 1 --vocab 20 --threads 1 --steps 2 --warmup 1".split()
BATCH = ["--batch", "2", "--length", "4"]
SEARCH = "--sentences 2 --length 4 --output-length 5".split()


@pytest.mark.parametrize(
    ("benchmark", "options"),
    [
        (train_step, [*BATCH, "--engine", "ours", "--engine", "ours-recompute", "--engine", "floor"]),
        (language_step, [*BATCH, "--engine", "ours"]),
        (translate, [*SEARCH, "--engine", "ours", "--beam", "2"]),
    ],
)
def test_our_engines_take_their_steps(benchmark, options, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [benchmark.__name__, *WIDTHS, *options, "--json"])
    benchmark.main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = found if isinstance(found, list) else [found]
    assert [row["engine"] for row in rows] == [word for word in options if word in benchmark.ENGINES]
    assert all(0 < row["fastest"] <= row["seconds"] <= row["slowest"] and row["peak_rss_mib"] > 0 for row in rows)


def test_a_profile_names_the_kernels_and_leaves_them_as_they_were(monkeypatch, capsys):
    parts = [part for kernel in npx.KERNELS.values() for part in (kernel, kernel.grad) if part]
    before = [dict(part.versions) for part in parts]
    monkeypatch.setenv("NPX_CUBLASLT", "0")  # which a step sets, too
    monkeypatch.setattr(sys, "argv", ["train_step", *WIDTHS, *BATCH, "--profile"])
    train_step.main()
    said = capsys.readouterr().out
    assert said.startswith("forward ") and "attention_grad" in said and "between kernels" in said
    assert [part.versions for part in parts] == before


def test_growth_has_a_row_for_every_setting(monkeypatch, capsys):
    tiny = {"batch": 2, "length": 4, "vocab": 20, "layers": 1, "d_model": 8, "heads": 2, "d_ff": 16}
    monkeypatch.setattr(growth, "START", tiny)
    monkeypatch.setattr(growth, "RANGES", {"length": (4, 8)})
    monkeypatch.setattr(sys, "argv", ["growth", "--threads", "1", "--steps", "1"])
    growth.main()
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line[:3] in ("| 4", "| 8")]
    assert len(rows) == 2 and rows[0][-1] == " |"
    assert npx.host.isfinite(float(rows[1][-1].strip(" |")))  # how time grows: at this size it may not
