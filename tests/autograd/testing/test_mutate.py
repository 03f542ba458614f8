"""`python -m autograd.testing mutate`: its mutants, its report on weak and strong tests, and wrong usage.

Most modules here define `differentiable` themselves and compute with floats, so that a run has nothing to import.
"""

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from autograd.testing import mutate
from autograd.testing.mutation.backward_code import INTERMEDIATE, PER_INPUT, Source, find_backward_code
from autograd.testing.mutation.mutator import instrumented, mutants
from autograd.testing.mutation.operators import KINDS
from autograd.testing.mutation.planted import planted
from autograd.testing.mutation.runner import MutantResult, Runner
from tests import ROOT

PATH = {"PYTHONPATH": str(ROOT)}
SMALL = """\
def differentiable(function):
    return function


@differentiable
def square(x):
    return x * x, lambda g: (doubled(g, x),)


def doubled(g, x):
    return g * 2 * x


@differentiable
def twice(x):
    def vjp(g):
        n = 0
        while n < 2:
            n += 1
        return (g * n,)

    return 2 * x, vjp
"""
WEAK = "from small import square\n\ndef test_one():\n    y, vjp = square(1.0)\n    assert vjp(1.0) == (2.0,)\n"
STRONG = WEAK.replace("square(1.0)", "square(3.0)").replace("2.0", "6.0")
EVERY_KIND = """\
import numpy as np
from autograd import differentiable


@differentiable
def everything(a, b):
    def vjp(g):
        ga = np.sum(-g * b**2, axis=0) * (a > 0)
        gb = np.zeros_like(b)
        np.add.at(gb, [0, 0], g - a)
        return ga, gb

    return a * b, vjp
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Change to an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder, capsys):
    """Return a function that writes files and runs the command; it returns the exit status, stdout and stderr."""

    def run(files, *arguments):
        for name, text in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        status = mutate.main(list(arguments))
        output = capsys.readouterr()
        return status, output.out, output.err

    return run


def changes(text, function=None):
    return [(m.kind, m.old, m.new) for m in mutants(text) if function in (None, m.function)]


def operation(gradient, before="pass"):
    """Return the source of a module with one operation; its vjp starts with the lines `before`."""
    lines = "\n        ".join(before.splitlines())
    head = "import numpy as np\n@differentiable\ndef f(x, w):\n    def vjp(g):\n"
    return f"{head}        {lines}\n        return {gradient}\n    return x, vjp\n"


# The mutants


def test_every_kind_has_a_mutant():
    assert {m.kind for m in mutants(EVERY_KIND)} == set(KINDS)


@pytest.mark.parametrize(
    "gradient, kind, old, new",
    [
        ("(-g,)", "sign", "-g", "g"),
        ("(g * x + w,)", "sign", "g * x + w", "g * x - w"),
        ("(g * (x + w),)", "sign", "x + w", "x - w"),
        ("(g * x,)", "sign", "g * x", "-(g * x)"),
        ("(g * x,)", "factor", "g * x", "2 * (g * x)"),
        ("(g * x / w,)", "factor", "g * x / w", "g * x"),
        ("(2 * g,)", "factor", "2 * g", "g"),
        ("(np.sum(g, axis=0),)", "lost reduction", "np.sum(g, axis=0)", "g"),
        ("(np.sum(g, axis=0),)", "lost reduction", "np.sum(g, axis=0)", "g.take(0, axis=0)"),
        ("(g.mean(-1),)", "lost reduction", "g.mean(-1)", "g.sum(-1)"),
        ("(unbroadcast(g, x),)", "lost reduction", "unbroadcast(g, x)", "g"),
        ("(x - g,)", "swapped operands", "x - g", "g - x"),
        ("(g * x,)", "swapped operands", "x", "w"),
        ("(g * x, g)", "swapped operands", "(g * x, g)", "(g, g * x)"),
        ("(g - x * w,)", "dropped term", "g - x * w", "g"),
        ("(g.sum(axis=-1),)", "wrong axis", "-1", "0"),
        ("(g @ w.T,)", "wrong axis", "w.T", "w"),
        ("(np.cumsum(g[::-1])[::-1],)", "wrong axis", "g[::-1]", "g"),
        ("(g, x)", "detached input", "x", "None"),
        ("(np.where(x > 0, g, 0),)", "changed comparison", "x > 0", "x >= 0"),
        ("(np.where(x > 0, g, 0),)", "changed comparison", "np.where(x > 0, g, 0)", "np.where(x > 0, 0, g)"),
        ("(g * x**3,)", "changed power", "x**3", "x ** 2"),
        ("(g / np.sqrt(x),)", "changed power", "np.sqrt(x)", "x"),
        ("(g,)", "rounded", "g", "planted.rounded(g, 'float16')"),
        ("(g * x,)", "gradient overwritten", "g * x", "planted.overwritten(g, g * x)"),
        ("(g * x,)", "stale workspace", "(g * x,)", "planted.of_call_before((g * x,))"),
        ("(g * x,)", "stale workspace", "vjp", "planted.vjp_of_last_call(vjp)"),
        ("kernel(g)", "factor", "kernel(g)", "planted.changed(kernel(g), lambda gx: 2 * gx, 1)"),
        ("kernel(g)", "swapped operands", "kernel(g)", "planted.swapped(kernel(g), 0)"),
    ],
)
def test_a_mutation_of_an_expression(gradient, kind, old, new):
    assert (kind, old, new) in changes(operation(gradient))


@pytest.mark.parametrize(
    "line, kind, new",
    [
        ("np.add.at(gx, ids, g)", "overwritten repeat", "gx[ids] = g"),
        ("npx.add_at(gx, ids, g)", "overwritten repeat", "gx[ids] = g"),
        ("gx[1:] += g", "overwritten repeat", "gx[1:] = g"),
        ("gx += g", "dropped term", "pass"),
        ("gx -= g", "sign", "gx += g"),
        ("gx *= g", "factor", "pass"),
    ],
)
def test_a_mutation_of_a_statement(line, kind, new):
    assert (kind, line, new) in changes(operation("(gx,)", line))


def test_forward_code_indices_shapes_and_conditions_on_shapes_are_not_mutated():
    text = operation("(g,)", "n = x.shape[0] - 1 if x.ndim > 1 else len(x) + 1\nh = g[n - 1 : n + 2].reshape(n * 2, 3)")
    assert {(old, new) for kind, old, new in changes(text) if old not in ("g", "(g,)", "vjp")} == {
        ("x.shape[0] - 1", "x.shape[0] + 1"),  # only a reader knows that this is a shape
        ("x.shape[0] - 1", "1 - x.shape[0]"),
        ("x.shape[0] - 1", "x.shape[0]"),
        ("len(x) + 1", "len(x) - 1"),
        ("len(x) + 1", "len(x)"),
        ("len(x) + 1", "1"),
    }
    assert changes("@differentiable\ndef f(x):\n    y = x * 2 + 1\n    return y, lambda g: (None,)\n") == []


def test_helpers_that_only_backward_code_calls_are_backward_code():
    text = """
def backward_helper(g): return nested_helper(g) * 2
def nested_helper(g): return g + 1
def shared_helper(x): return x * 3
@differentiable
def f(x):
    return shared_helper(x), lambda g: (backward_helper(g) * shared_helper(x),)
"""
    functions = {(b.name, b.result, *b.operations) for b in find_backward_code(Source(text)).functions}
    helpers = {(name, INTERMEDIATE, "f") for name in ("backward_helper", "nested_helper")}
    assert functions == helpers | {("f", PER_INPUT, "f")}


@pytest.mark.parametrize(
    "text, names",
    [
        ("f = differentiable(lambda x: (x, lambda g: (g,)))", ["f"]),
        ("def f(x): return x, lambda g: (g,)\nop = autograd.differentiable(f)", ["f"]),
        ("from autograd import differentiable as op\n@op\ndef f(x): return x, lambda g: (g,)", ["f"]),
        ("def back(x, g): return (g,)\n@differentiable\ndef f(x): return x, partial(back, x)", ["f"]),
        ("def make(x): return lambda g: (g,)\n@differentiable\ndef f(x): return x, make(x)", ["f"]),
        ("class Back:\n    def __call__(self, g): return (g,)\n@differentiable\ndef f(x): return x, Back()", ["f"]),
        ("def shared(x): return x, lambda g: (g,)\n@differentiable\ndef f(x): return shared(x)", ["f"]),
        (
            "@softmax.define_gradient\ndef grad(g, y): return g\n@grad.fast('numpy')\ndef quick(g, y): return g",
            ["grad", "quick"],
        ),
        ("def f(x): return x, lambda g: (g,)", []),
    ],
)
def test_the_ways_to_define_an_operation(text, names):
    assert [b.name for b in find_backward_code(Source(text)).functions] == names


FOREIGN = """
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, (g * x).sum(dim=0, keepdim=True)

def square_rule(x, g):
    return (2 * x * g,)

square = jax.custom_vjp(lambda x: x * x)
square.defvjp(lambda x: (x * x, x), square_rule)

def affine_forward(x, w):
    return x @ w, (x, w)

def affine_backward(dout, cache):
    x, w = cache
    return dout @ w.T, scaled(x.T @ dout)

def scaled(x):
    return x - mean(x)
"""


def test_backward_code_of_other_frameworks():
    code = {m.function for m in mutants(FOREIGN)}
    assert code == {"Scale", "square", "affine", "scaled"}
    changes = {(m.function, m.old, m.new) for m in mutants(FOREIGN)}
    assert changes >= {
        ("Scale", "(g * x).sum(dim=0, keepdim=True)", "(g * x).narrow(0, 0, 1)"),
        ("Scale", "g * w", "planted.overwritten(g, g * w)"),
        ("square", "2 * x * g", "planted.overwritten(g, 2 * x * g)"),
        ("affine", "dout @ w.T", "planted.overwritten(dout, dout @ w.T)"),
        ("scaled", "x - mean(x)", "x"),
    }
    assert not any("forward" in m.before or "x * w" in m.old for m in mutants(FOREIGN))


@pytest.mark.parametrize(("outcome", "is_said"), [("crashed", True), ("unnoticed", True), ("found", False)])
def test_it_is_said_that_no_assertion_failed(outcome, is_said):
    outcomes = [MutantResult(m, outcome) for m in mutants(SMALL)]
    assert ("No assertion failed for any mutant" in mutate.summary(outcomes, Path("small.py"))) == is_said


def test_inputs_and_parameters_of_a_layer_are_detached():
    text = """
class Layer:
    def __init__(self):
        self.gain, self.n = Parameter(1), 3
        self.gain = Parameter(1)
    def forward(self, x, mask=None):
        if len(x) > len(self.gain): raise ValueError
        return norm(x, self.gain) * self.n + mask
"""
    assert changes(text) == [
        ("detached input", "x", "x.detach()"),
        ("detached input", "self.gain", "self.gain.detach()"),
    ]


@pytest.mark.parametrize("path", ["autograd/operations.py", "autograd/neural.py", "npx/kernels/attention.py"])
def test_every_mutant_is_valid_python_and_no_two_are_equal(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    mutated = [m.apply(text) for m in mutants(text)]
    assert len(set(mutated)) == len(mutated) > 50 and text not in mutated
    for other in [instrumented(text, mutants(text)), *mutated[::9]]:
        ast.parse(other)


def test_instrumentation_changes_no_result():
    scope = {"planted": planted, "differentiable": lambda f: f, "np": np}
    exec(instrumented(EVERY_KIND.split("\n", 2)[2], mutants(EVERY_KIND.split("\n", 2)[2])), scope)
    y, vjp = scope["everything"](np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    ga, gb = vjp(np.array([1.0, 1.0]))
    assert ga.tolist() == [-25.0, -25.0] and gb.tolist() == [-1.0, 0.0]


# Mutations that are not an expression


def test_mutations_across_calls():
    first = planted.vjp_of_last_call(lambda g: g + 1)
    second = planted.vjp_of_last_call(lambda g: g + 2)
    assert first(0) == second(0) == 2
    one, two, long = (np.full(n, float(n)) for n in (1, 2, 2))
    assert [planted.of_call_before((x,))[0] for x in (one, two, 3 * long)] == [one, two, two]


def test_mutations_of_one_gradient():
    g = np.ones(2)
    x = np.array([1 / 3, 2.0])
    assert planted.rounded(x, "float16")[0] == np.float16(1 / 3) and planted.rounded(x, "float16").dtype == "float64"
    assert planted.overwritten(g, x) is g and g.tolist() == x.tolist()
    assert planted.overwritten(g, x[:1]).tolist() == [1 / 3] and g[1] == 2
    assert planted.changed((1, None, 3), lambda gx: -gx, 2) == (1, None, -3)
    assert planted.changed((1, None, 3), lambda gx: -gx, 1) == (1, None, 3) and planted.changed(2, lambda gx: -gx) == -2
    assert planted.swapped((1, 2, 3), 1) == (1, 3, 2)


def test_the_first_run_finds_mutants_without_effect():
    g = np.ones(2)
    gx = (np.ones(2), None, np.ones(3))
    assert planted.reached(gx, (-1, 0, None), (-2, 1, None), (-3, 2, None), (-4, 0, g), (-5, 2, g), (-6, 9, None)) is gx
    planted.reached(np.ones(()), (-7, None, np.ones(())), (-8, None, None))  # a scalar has no memory to overwrite
    assert planted.can_change & set(range(-9, 0)) == {-1, -3, -4, -8} and set(range(-8, 0)) <= planted.reached_by.keys()


# The command


def test_weak_tests_let_a_mutant_survive(run, folder):
    files = {"small.py": SMALL, "test_small.py": WEAK + "\n\ndef test_other():\n    pass\n"}
    status, out, err = run(files, "small", "--only", "doubled", "--json", "all.json", "--jobs", "1")
    assert status == 1 and not err
    lines = [line.strip() for line in out.splitlines()]
    assert lines[0] == "3 mutants of small.py; tests: test_small.py"
    assert lines[2].split() == ["1/3", "unnoticed", "line", "11", "doubled:", "factor"]
    assert ["all", "3", "2", "1", "0"] in [line.split() for line in lines]
    assert "1 mutant passed every test that executes the mutated code." in out
    assert lines[-4:-2] == ["small.py:11  doubled:  return g * 2 * x", "factor                 g * 2 * x   ->   g * 2"]
    written = json.loads((folder / "all.json").read_text())
    assert written["kinds"] == {"factor": {"unnoticed": 1, "found": 2}} and written["n_mutants"] == 3
    unnoticed, found, _ = written["mutants"]
    assert (unnoticed["before"], unnoticed["after"]) == ("return g * 2 * x", "return g * 2")
    assert found["test"] == "test_small.py::test_one" and found["error"].startswith("AssertionError: assert (1.0,) ==")
    assert sorted(path.name for path in folder.rglob("*")) == ["all.json", *sorted(files)]  # no other file is written
    assert [(folder / name).read_text() for name in files] == list(files.values())


@pytest.mark.slow
def test_strong_tests_detect_every_mutant(run):
    status, out, _ = run({"small.py": SMALL, "test_small.py": STRONG}, "./small.py", "--only", "doubled", "--jobs", "2")
    assert status == 0 and "Every mutant was detected." in out


def test_mutants_that_no_test_executes_are_listed(run):
    files = {"small.py": SMALL, "test_small.py": WEAK.replace("assert vjp(1.0) == (2.0,)", "assert y == 1")}
    status, out, _ = run(files, "small", "--only", "doubled")
    assert status == 1 and out.splitlines()[-3] == "small.py:11  doubled: no test executes 3 of its mutants, in line 11"


def test_a_mutant_that_does_not_end_is_detected(folder):
    (folder / "small.py").write_text(SMALL)
    (folder / "test_small.py").write_text(WEAK.replace("square", "twice"))
    (mutant,) = [m for m in mutants(SMALL) if (m.old, m.new) == ("n += 1", "pass")]
    outcome = Runner(folder / "small.py", SMALL, ["test_small.py"]).run_on(mutant, [], [], 1.0)
    assert outcome.detected and outcome.status == "does not end" and outcome.error == "did not end after 1 s"


def test_list_runs_no_tests(run):
    status, out, _ = run({"small.py": SMALL}, "small.py", "--list", "--only", "doubled")
    assert status == 0 and out.splitlines() == [
        "small.py:11  doubled:  return g * 2 * x",
        "    factor                 g * 2 * x   ->   g * 2",
        "    factor                 g * 2 * x   ->   x",
        "    factor                 g * 2   ->   g",
    ]


WRONG_USAGE = [
    (["smal"], "expected the dotted name of a module or the path of a .py file; got 'smal', for which no"),
    (["./smal.py"], "expected the path of a .py file; got ./smal.py, which is not a file"),
    (["plain.py"], "expected operations .* or layers with parameters in plain.py; got neither"),
    (["broken.py"], "expected Python in broken.py; got .* in line 1"),
    (["small", "--only", "cube"], "expected an operation defined in small.py; got 'cube'; try doubled, square, twice"),
    (["small", "--jobs", "0"], "expected at least 1 for --jobs; got 0"),
    (["small", "--json", "nowhere/all.json"], "a file in an existing folder for --json; got nowhere/all.json"),
    (["small", "--jobs", "many"], "argument --jobs: invalid int value: 'many'; try --help"),
    ([], "the following arguments are required: MODULE; try --help"),
    (["alone.py"], "expected tests that import alone.py, next to it or in ./tests; found none; try --tests PATH"),
    (["small", "--tests", "test_fails.py"], "got test_fails.py::test: AssertionError: no; try `python -m pytest"),
    (["small", "--tests", "test_none.py"], "expected tests in test_none.py; pytest found none there"),
    (["small", "--tests", "test_missing.py"], "expected tests that pass .*; got .*test_missing.py"),
    (["small", "--tests", "test_other.py"], "expected tests that import .*small.py; found none in test_other.py"),
]


@pytest.mark.parametrize(
    "arguments, message", WRONG_USAGE, ids=[" ".join(arguments) or "none" for arguments, _ in WRONG_USAGE]
)
def test_wrong_usage_is_reported_in_one_line(run, arguments, message):
    files = {
        **{"small.py": SMALL, "alone.py": SMALL, "plain.py": "x = 1\n", "broken.py": "def f(:\n", "test_none.py": ""},
        "test_fails.py": "import small\n\ndef test():\n    assert False, 'no'\n",
        "test_other.py": "def test():\n    pass\n",
    }
    status, out, err = run(files, *arguments)
    assert status == 2 and err.startswith(("mutate: expected", "mutate: argument", "mutate: the following"))
    assert err.count("\n") == 1
    assert re.search(message, err)


def test_ctrl_c_kills_the_child_processes_without_a_message(folder):
    (folder / "small.py").write_text(SMALL)
    slow = "import os, time\nfrom small import square\n\ndef test():\n    if square(3.0)[1](1.0) != (6.0,):\n"
    slow += "        open('pid', 'w').write(str(os.getpid()))\n        time.sleep(60)\n"
    (folder / "test_small.py").write_text(slow)
    command = [sys.executable, "-m", "autograd.testing", "mutate", "small", "--only", "doubled"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | PATH)
    while not (folder / "pid").exists() or not (folder / "pid").read_text():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130 and not err
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), 0)


@pytest.mark.slow
def test_a_module_that_the_checker_imports():
    """The gradient checker itself imports autograd/operations.py, yet its tests see the mutant."""
    file = ROOT / "autograd" / "operations.py"
    text = file.read_text(encoding="utf-8")
    selected = [m for m in mutants(text) if m.function == "exp" and m.kind in ("sign", "rounded")]
    runner = Runner(file, text, [str(ROOT / "tests/autograd/testing/plain_gradient_tests.py"), "-k", "exp"])
    first = runner.first_run(selected)
    assert len(first.reached) == 3 and all("test_unary[exp]" in names[0] for names in first.reached.values())
    first = first._replace(reached={n: first.reached[n] for n in (0, 1)})
    outcomes = list(runner.run_on_all(selected, first, 60, 2))
    assert sorted((o.mutant.kind, o.status) for o in outcomes) == [("rounded", "unnoticed"), ("sign", "found")]
    assert next(o.test for o in outcomes if o.detected).endswith("test_unary[exp]")


@pytest.mark.parametrize("arguments, got", [([], "got no command"), (["plant"], "got 'plant'")])
def test_another_command_is_rejected(arguments, got):
    done = subprocess.run(
        [sys.executable, "-m", "autograd.testing", *arguments], capture_output=True, text=True, cwd=ROOT
    )
    assert (
        done.returncode == 2
        and done.stderr == f"autograd.testing: expected the command check or mutate; {got}; try `check --help`\n"
    )


def test_default_tests_are_next_to_the_module_and_in_tests(folder):
    for name in ("tests", "parts"):
        (folder / name).mkdir()
    files = {
        "parts/small.py": SMALL,
        "parts/test_a.py": "from .small import square",
        "parts/b_test.py": "import parts.small as s",
        "tests/test_c.py": "def test():\n    from parts import small",
        "tests/test_d.py": "import other",
        "tests/helper.py": "import parts.small",
        "test_e.py": "import parts.small",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    expected = ["parts/b_test.py", "parts/test_a.py", "tests/test_c.py"]
    assert mutate.default_tests(mutate.find_module("parts.small")) == expected
