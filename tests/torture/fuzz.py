"""Fuzzed inputs of six readers: each ends in a result or in one line, soon, and within 1 GiB.

`READERS`: configuration, data preparation, tokenizer, checkpoint, translate, score. `feed` gives one some bytes. Inputs
are mutated from real ones (`mutated`), drawn by hypothesis (tests/test_torture.py) or, with atheris (the extra `fuzz`),
led by coverage: `python -m tests.torture.fuzz config -max_total_time=60`.
"""

import io
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from types import FunctionType

from rich.console import Console

from tests.helpers.trainings import config, write_pairs
from train import RunConfig, Tokenizer, UserError, load_model, train
from train.cli.streams import stream_lines
from train.metrics.bleu import print_report, score_report
from train.metrics.limits import check_lengths
from train.run.checkpoint import load_checkpoint
from train.run.folder import RunFolder
from train.tasks.translation import translate_stream
from train.text.corpus import prepare
from train.text.lines import read_lines

GIB = 2**30
AT_A_TIME = 250  # inputs a fork
SECONDS = 30  # that one may take
# A disk may take 8 ms to open for writing what it has; the readers are not asked what it keeps.
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.R_OK | os.W_OK | os.X_OK) else None


class Model:
    """A folder with a trained model, and the texts it learned from."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_pairs(self.folder, "train", 40, seed=1)
        write_pairs(self.folder, "valid", 5, seed=2)
        self.run = self.folder / "run"
        train(config(self.folder, max_steps=3), self.run, progress=False)
        self.checkpoint = RunFolder(self.run).steps()[-1]
        self.loaded = load_model(self.run)
        self.file = self.folder / "input"

    def seeds(self, reader):
        """Real inputs of a reader."""
        text = [(self.folder / f"train.{side}").read_bytes() for side in ("en", "de")]
        if reader == "config":
            return [(self.run / "config.toml").read_bytes(), b"[model]\nd_model = 8\n[train]\nseed = 1\n"]
        if reader == "tokenizer":
            return [(self.run / "tokenizer.json").read_bytes()]
        if reader == "checkpoint":
            return [file.read_bytes() for file in sorted(self.checkpoint.iterdir())]
        return [*text, "\ufeffé ü\u2028\r\n\n\x00 \U0001f600\n".encode()]


def read_config(model, data):
    RunConfig.load(model.file)


def read_data(model, data):
    text, _, other = data.partition(b"\xfe")
    model.file.write_bytes(text)
    second = model.folder / "second"
    second.write_bytes(other or text)
    prepare(model.file, second, model.loaded[1], model.folder / "prepared", 20)


def read_tokenizer(model, data):
    tokenizer = Tokenizer.load(model.file)
    tokenizer.decode_batch(tokenizer.encode_batch(["one two", "", "\u00e9\u2028 </s>"]))


def read_checkpoint(model, data):
    """The bytes in place of each of the files in turn; a checkpoint that loads is the one that was written."""
    for name in ("state.json", "model.safetensors", "optimizer.safetensors"):
        file = model.checkpoint / name
        before = file.read_bytes()
        try:
            file.write_bytes(data)
            found = load_checkpoint(model.checkpoint)
            assert found.model.keys() == model.loaded[0].state_dict().keys()
        except UserError as error:
            one_line(error)
        finally:
            file.write_bytes(before)


def read_translate(model, data):
    network, tokenizer, _ = model.loaded
    with open(model.file, "rb") as file:
        lines = list(stream_lines(file, "input", 1 << 16))
    found = list(translate_stream(network, tokenizer, lines, beam=1, max_extra=2, max_length=40, on_warning=str))
    assert len(found) == sum(line is not None for line in lines)
    assert all("\n" not in best[0][0] and "\r" not in best[0][0] for best in found)


def read_score(model, data):
    text, _, other = data.partition(b"\xfe")
    model.file.write_bytes(text)
    second = model.folder / "second"
    second.write_bytes(other or text)
    lines = [[line for chunk in read_lines(file) for line in chunk] for file in (model.file, second)]
    report = score_report(*lines, ter=not check_lengths(*lines))
    print_report(report, Console(file=io.StringIO(), width=200))


READERS = {
    "config": read_config, "data": read_data, "tokenizer": read_tokenizer, "checkpoint": read_checkpoint,
    "translate": read_translate, "score": read_score,
}  # fmt: skip


def feed(model, reader, data):
    """Gives a reader some bytes; any error but one line for a user passes on."""
    model.file.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            READERS[reader](model, data)
        except UserError as error:
            one_line(error)


def one_line(error):
    """AssertionError unless a message is one line that says what was expected."""
    assert "\n" not in str(error) and "expected" in str(error), str(error)


PARTS = [
    *(b"", b"\0", b"\n", b"\r\n", b"\xff", b"\xfe", b"\xef\xbb\xbf", b'"', b"'", b"\\", b"[", b"{", b"]]", b"=", b"-1"),
    *(b"NaN", b"1e999", b"9" * 400, b"null", b"true", b"[[" * 60_000, b'{"a":' * 60_000, b"\\ud800", b"../..", b"#"),
    *(b" " * 5000, b"a" * 20_000, "\u2028\u0085\U0010ffff".encode(), b"model.d_ff = 10000000000000000000\n", b"\t"),
]


def mutated(rng, seeds):
    """One of the seeds with a few changes: bits, bytes, numbers, pieces taken out, repeated, put in or mixed."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice([1, 1, 2, 3, 8])):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice([1, 1, 2, 5, 50, 500]))
        how = rng.randrange(7)
        if how == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif how == 1:
            data[at:end] = b""
        elif how == 2:
            data[at:at] = rng.choice(PARTS)
        elif how == 3:
            data[at:end] = rng.randbytes(end - at)
        elif how == 4:
            data[at:at] = data[at:end] * rng.choice([1, 3, 20])
        elif how == 5:
            other = rng.choice(seeds)
            start = rng.randrange(len(other) + 1)
            data[at:end] = other[start : start + rng.choice([1, 10, 100])]
        else:
            digits = [i for i, byte in enumerate(data) if 48 <= byte < 58]
            if digits:
                data[rng.choice(digits)] = rng.choice(b"0123456789-.e")
    return bytes(data[: 1 << 18])


# ---- counted


def some(model, reader, seed, count, keep):
    """Feeds a reader so many inputs, in a folder of this process's own; 1 after the first that it does not survive.

    That one is kept in the folder `keep`.
    """
    own = Path(tempfile.mkdtemp(dir=model.folder))
    shutil.copytree(model.run, own / "run")
    mine = object.__new__(Model)
    mine.__dict__ |= {**model.__dict__, "folder": own, "file": own / "input"}
    mine.checkpoint = own / "run" / "checkpoints" / model.checkpoint.name
    seeds, status = model.seeds(reader), 0
    os.fsync = lambda descriptor: None  # what is on disk after a power cut is not asked here
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + GIB, used + GIB))
    for number in range(count):
        data = mutated(random.Random(f"{reader} {seed} {number}"), seeds)
        signal.alarm(SECONDS)
        try:
            feed(mine, reader, data)
        except BaseException as error:
            kept = keep / f"failed-{reader}-{seed}-{number}"
            kept.write_bytes(data)
            sys.stderr.write(f"input {seed}/{number}, kept as {kept}: {type(error).__name__}: {str(error)[:300]}")
            status = 1
            break
    signal.alarm(0)
    shutil.rmtree(own)
    return status


def fuzzed(ground, count, seed=5):
    """So many inputs over the readers, each `AT_A_TIME` in a fork of 1 GiB beside what it began with."""
    started, each = time.monotonic(), -(-count // len(READERS))
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=IN_MEMORY) as folder:
        right, total = counted(ground, Model(folder), each, seed)
    seconds = time.monotonic() - started
    return f"{total:,} fuzzed inputs over {', '.join(READERS)} in {seconds:.0f} s, 1 GiB each at most", right, total


def counted(ground, model, each, seed):
    """Feeds every reader `each` inputs: how many were right, of how many."""
    right, total = 0, 0
    for reader in READERS:
        for first in range(0, each, AT_A_TIME):
            n = min(AT_A_TIME, each - first)
            call = partial(some, model, reader, f"{seed}.{first}", n, ground.folder)
            status = ground.status(call, SECONDS * 20.0)
            total += n
            if status == 0:
                right += n
            else:
                ground.tell(f"fuzz {reader} {seed}.{first}: exit {status}: {ground.said()[-600:]}")
    return right, total


def main():
    """Atheris on one reader: `python -m tests.torture.fuzz READER [its own options]`."""
    import atheris

    reader, model = sys.argv.pop(1), Model(tempfile.mkdtemp())
    corpus = Path(tempfile.mkdtemp())
    for number, seed in enumerate(model.seeds(reader)):
        (corpus / str(number)).write_bytes(seed)
    for name, module in [*sys.modules.items()]:  # the readers' own lines lead, not those of NumPy
        if name.startswith("train."):
            for function in vars(module).values():
                if isinstance(function, FunctionType) and function.__module__ == name:
                    atheris.instrument_func(function)
    atheris.Setup([*sys.argv, str(corpus)], lambda data: feed(model, reader, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
