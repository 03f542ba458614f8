"""Run folders that were damaged in every way: what is loaded is what was written, or one line says what is not.

A damaged folder is resumed, translated with and described. Right is: the outcome that nothing happened to (from the
newest checkpoint that is whole), the translations of one of the checkpoints, or exit status 2 with one line.
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


def damaged(ground, count, seed=4):
    """Damages so many copies of a run, each in one way."""
    rng, kinds, right, refused = random.Random(seed), Counter(), 0, 0
    run, further = ground.fresh("before"), ground.fresh("further")
    assert ground.child(lambda: ground.train(run)).wait() == 0
    shutil.copytree(run, further)
    assert ground.child(lambda: ground.train(further, True, max_steps=STEPS)).wait() == 0, ground.said()
    expected = at(further, STEPS)
    allowed = {tuple(translations(path)) for path in RunFolder(run).steps()}
    (ground.folder / "source").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    for number in range(count):
        out = ground.fresh()
        shutil.copytree(run, out)
        kind, what = damage(rng, out)
        kinds[kind] += 1
        name = f"damaged {number}: {what}"
        good = checked(ground, name, partial(command, ["translate", "--model", str(out)], ground.folder), allowed)
        good &= checked(ground, name, partial(command, ["info", str(out)], ground.folder), None)
        status = ground.status(partial(ground.train, out, True, max_steps=STEPS))
        told = ground.said()
        if status == 0:
            good &= at(out, STEPS) == expected
        else:
            good &= status == 2 and told.count("\n") == 1
            refused += 1
        if not good:
            ground.tell(f"{name}: resumed with exit {status}: {told[-600:]}")
        right += good
    words = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
    ends = f"{refused} refused with a line, the others resumed right"
    return f"{count} damaged run folders ({words}); {ends}", right, count


def at(out, step):
    """The checkpoint after so many steps, but for what a clock decides."""
    found = load_checkpoint(RunFolder(out).step(step))
    state = {key: value for key, value in found.state["run"].items() if key not in CLOCKS}
    arrays = {name: array.tobytes() for name, array in (found.model | found.optimizer).items()}
    return arrays, state


def translations(path):
    """What a checkpoint translates."""
    model, tokenizer, config = load_model(path)
    found = translate_lines(model, tokenizer, LINES, beam=2, max_extra=config.search.max_extra)
    return [translated[0][0] for translated in found]


def command(arguments, folder):
    """A command on a damaged folder."""
    if arguments[0] == "translate":
        arguments = [*arguments, "--beam", "2", "--input", str(folder / "source"), "--output", str(folder / "out")]
    return main(arguments)


def checked(ground, name, call, allowed):
    """Whether a command ends with what is allowed, or with one line and exit status 2."""
    status = ground.status(call)
    told = ground.said()
    if status == 0 and allowed is not None:
        if tuple((ground.folder / "out").read_text(encoding="utf-8").split("\n")[:-1]) in allowed:
            return True
    elif status == 0 or status == 2 and told.count("\n") >= 1 and "Traceback" not in told:
        return True
    ground.tell(f"{name}: {call.args[0][0]}: exit {status}: {told[-600:]}")
    return False


def damage(rng, out):
    """Damages one file of a run; (the kind of damage, in words)."""
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
    """The length that a .safetensors begins with, or bytes after its end."""
    content = bytearray(file.read_bytes() or b"\0")
    if rng.random() < 0.5:
        content[:8] = rng.choice([0, 1, 2**20, 2**40, 2**63, 2**64 - 1]).to_bytes(8, "little")
    else:
        content += rng.randbytes(rng.randrange(1, 99))
    file.write_bytes(content)


def numbers(rng, file, files):
    """A number, or a name, of a JSON file changed, or a digit of another."""
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
    odd = [-1, 0, 59, 10**9, 10**30, 1.5, None, "x", [], {}, True, "../../etc/passwd", "\ud800"]
    node[key] = rng.choice(odd)
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
