"""Damaged run folders: a command either loads exactly what was written, or reports the damage in one line.

Each damaged folder is resumed, used by `translate`, and described by `info`. A case is right if it gives the result of
the undisturbed run (from the newest intact checkpoint), the translations of one of the checkpoints, or exit status 2
with one line.
"""

import json
import os
import random
import shutil
from collections import Counter
from functools import partial

from tests.helpers.trainings import CLOCKS
from train import load_model
from train.cli import main
from train.run.checkpoint import load_checkpoint
from train.run.folder import RunFolder
from train.tasks.translation import translate_lines

STEPS = 15
LINES = ["one two three", "four", "", "nine eight"]


def damaged(workspace, count, seed=4):
    """Damage `count` copies of a run, each in one way."""
    rng, kinds, right, rejected = random.Random(seed), Counter(), 0, 0
    run, continued = workspace.new_run("before"), workspace.new_run("continued")
    assert workspace.child(lambda: workspace.train(run)).wait() == 0
    shutil.copytree(run, continued)
    assert workspace.child(lambda: workspace.train(continued, True, max_steps=STEPS)).wait() == 0, workspace.stderr()
    expected = checkpoint_at(continued, STEPS)
    allowed = {tuple(translations(path)) for path in RunFolder(run).step_paths()}
    (workspace.folder / "source").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    for number in range(count):
        out = workspace.new_run()
        shutil.copytree(run, out)
        kind, description = damage(rng, out)
        kinds[kind] += 1
        name = f"damaged {number}: {description}"
        passed = checked(
            workspace, name, partial(command, ["translate", "--model", str(out)], workspace.folder), allowed
        )
        passed &= checked(workspace, name, partial(command, ["info", str(out)], workspace.folder), None)
        status = workspace.status(partial(workspace.train, out, True, max_steps=STEPS))
        output = workspace.stderr()
        if status == 0:
            passed &= checkpoint_at(out, STEPS) == expected
        else:
            passed &= status == 2 and output.count("\n") == 1
            rejected += 1
        if not passed:
            workspace.report(f"{name}: resumed with exit {status}: {output[-600:]}")
        right += passed
    words = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
    end = f"{rejected} were rejected with one line, the others resumed correctly"
    return f"{count} damaged run folders ({words}); {end}", right, count


def checkpoint_at(out, step):
    """Return the arrays and the state of a checkpoint, without clock times."""
    checkpoint = load_checkpoint(RunFolder(out).step_path(step))
    state = {key: value for key, value in checkpoint.state["run"].items() if key not in CLOCKS}
    arrays = {name: array.tobytes() for name, array in (checkpoint.weights | checkpoint.optimizer_arrays).items()}
    return arrays, state


def translations(path):
    """Return the translations of a checkpoint."""
    model, tokenizer, config = load_model(path)
    results = translate_lines(model, tokenizer, LINES, beam_size=2, max_extra_tokens=config.search.max_extra_tokens)
    return [hypotheses[0][0] for hypotheses in results]


def command(arguments, folder):
    """Run a command on a damaged folder."""
    if arguments[0] == "translate":
        arguments = [*arguments, "--beam-size", "2", "--input", str(folder / "source"), "--output", str(folder / "out")]
    return main(arguments)


def checked(workspace, name, call, allowed):
    """Return whether a command gives an allowed result, or exit status 2 with one line."""
    status = workspace.status(call)
    output = workspace.stderr()
    if status == 0 and allowed is not None:
        if tuple((workspace.folder / "out").read_text(encoding="utf-8").split("\n")[:-1]) in allowed:
            return True
    elif status == 0 or status == 2 and output.count("\n") >= 1 and "Traceback" not in output:
        return True
    workspace.report(f"{name}: {call.args[0][0]}: exit {status}: {output[-600:]}")
    return False


def damage(rng, out):
    """Damage one file of a run; return the kind of damage and a description."""
    files = sorted(path for path in out.rglob("*") if path.is_file() and path.name != "log.txt")
    file = rng.choice(files)
    kind = rng.choice([*DAMAGES])
    detail = DAMAGES[kind](rng, file, files)
    return kind, f"{kind} {file.relative_to(out)} {detail or ''}"


def truncated(rng, file, files):
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(len(content) + 1)])


def flipped(rng, file, files):
    content = bytearray(file.read_bytes() or b"\0")
    at = rng.randrange(len(content))
    content[at] ^= 1 << rng.randrange(8)
    file.write_bytes(content)
    return f"at {at}"


def missing(rng, file, files):
    file.unlink()


def swapped(rng, file, files):
    other = rng.choice([path for path in files if path.name == file.name] or files)
    content = file.read_bytes()
    file.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return f"with {other.parent.name}"


def folder(rng, file, files):
    file.unlink()
    file.mkdir()


def pipe(rng, file, files):
    file.unlink()
    os.mkfifo(file)


def link(rng, file, files):
    file.unlink()
    file.symlink_to(rng.choice(["/dev/zero", "/dev/null", file.name, "../nowhere", str(files[0])]))


def emptied(rng, file, files):
    file.write_bytes(b"")


def random_bytes(rng, file, files):
    file.write_bytes(rng.randbytes(rng.choice([1, 8, file.stat().st_size or 1])))


def lying_header(rng, file, files):
    """Change the length at the start of a .safetensors file, or append bytes."""
    content = bytearray(file.read_bytes() or b"\0")
    if rng.random() < 0.5:
        content[:8] = rng.choice([0, 1, 2**20, 2**40, 2**63, 2**64 - 1]).to_bytes(8, "little")
    else:
        content += rng.randbytes(rng.randrange(1, 99))
    file.write_bytes(content)


def numbers(rng, file, files):
    """Change a value of a JSON file, or a digit of another file."""
    text = file.read_bytes().decode("utf-8", "replace")
    try:
        content = json.loads(text)
    except ValueError:
        digits = [i for i, c in enumerate(text) if c.isdigit()]
        if digits:
            at = rng.choice(digits)
            file.write_bytes((text[:at] + rng.choice("0123456789e-.") + text[at + 1 :]).encode())
        return ""
    places = []

    def walk(node):
        for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            places.append((node, key))
            walk(node[key])

    walk(content)
    if not places:
        return ""
    node, key = rng.choice(places)
    values = [-1, 0, 59, 10**9, 10**30, 1.5, None, "x", [], {}, True, "../../etc/passwd", "\ud800"]
    node[key] = rng.choice(values)
    file.write_text(json.dumps(content), encoding="utf-8")
    return f"{key} = {node[key]!r}"


def deep(rng, file, files):
    bracket = rng.choice(["[", '{"a":', "a = ["])
    file.write_text(bracket * 100_000, encoding="utf-8")


def renamed(rng, file, files):
    name = rng.choice(["step-13", "step-999999999999", "step-..", "step-1e3", "step--1", "averaged", "best"])
    target = file.parent.parent / name
    if file.parent.parent.name == "checkpoints" and not target.exists():
        file.parent.rename(target)
    return name


DAMAGES = {
    f.__name__.replace("_", " "): f
    for f in (
        *(truncated, flipped, flipped, missing, swapped, folder, pipe, link, emptied, random_bytes, lying_header),
        *(numbers, deep, renamed),
    )
}
