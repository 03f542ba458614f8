"""A training over two hosts (two_hosts.py) whose wire is slow, loses frames, and is cut at last."""

import json
import os
import re
import shutil
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests import ROOT
from tests.helpers import distributed_jobs, trainings, two_hosts
from tests.train.test_distributed import check_same, some
from train import RunConfig
from train import train as train_run
from train.run.checkpoint import load_checkpoint
from train.run.folder import RunFolder

text = trainings.text
DELAY, LOSS = 0.02, 0.01
LAST = 12  # update of the run on one host


def needs_two_hosts():
    """Skips where this process may make no hosts."""
    for what, there in (
        ("root", hasattr(os, "geteuid") and os.geteuid() == 0),
        ("/dev/net/tun", os.path.exists("/dev/net/tun")),
        *((program, shutil.which(program)) for program in ("unshare", "nsenter", "ip", "mount")),
    ):
        if not there:
            pytest.skip(f"needs {what}")
    with two_hosts.started("true", cwd=ROOT) as process:
        told = process.stderr.read()
    if process.returncode and ("ermission" in told or "permitted" in told):
        pytest.skip(f"needs the right to make hosts: {told.splitlines()[-1]}")


@contextmanager
def started(told, *arguments, **how):
    """Two hosts, which end with the block; what they say on stderr is in a file."""
    with open(told, "w") as file, two_hosts.started(*arguments, cwd=ROOT, stderr=file, **how) as process:
        try:
            yield process
        finally:
            process.kill()


def said_of(pid):
    """The command of a process, "" for one that has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def steps(out):
    return [int(path.name.removeprefix("step-")) for path in RunFolder(out).steps()]


def test_a_slow_network_that_loses_frames_changes_no_bit_and_is_told_and_one_that_is_cut_ends_the_run(text, tmp_path):
    """One test, so that mpirun is started twice, on two hosts and on one, at the same time."""
    distributed_jobs.needs_mpi()
    needs_two_hosts()
    about = {"precision": "float64", "accumulate": 1, "rank_timeout": 5.0, "keep_last": 1000}
    about |= {"log_every": 1, "checkpoint_every": 1, "validate_every": 10**6}
    jobs, runs = [tmp_path / name for name in ("there.json", "here.json")], [tmp_path / "there", tmp_path / "here"]
    for file, out, last in zip(jobs, runs, (10**6, LAST), strict=True):
        file.write_text(json.dumps([("train", 2, {"tables": some(text, 2, last, **about), "out": str(out)})]))
    work = ["-m", "tests.helpers.distributed_jobs"]
    environment = os.environ | distributed_jobs.QUIET | distributed_jobs.AS_ROOT | {"NPX_KILL_LAUNCHER": "1"}
    here, (there, alike) = distributed_jobs.started(2, *work, jobs[1]), runs
    command = ["--delay", DELAY, "--loss", LOSS, *distributed_jobs.command(2, *work, jobs[0])]
    with started(tmp_path / "told", *command, env=environment) as process:
        while len(steps(there)) < 6 and process.poll() is None:  # no longer than a rank's own patience
            time.sleep(0.05)
        process.stdin.write("cut\n")
        process.stdin.flush()
        status = process.wait(timeout=120)
    told = (tmp_path / "told").read_text()
    found = re.findall(r"npx-transformer: (.*), step \d+: (.*)", told)  # mpirun's own lines are around
    assert status == 1, told
    why = "no sign of life for 5 s (train.rank_timeout); the run ends; try --resume"
    assert found == [("rank 1 of 2 (host-b)", why)], told
    wire = json.loads(told[told.rindex("{") :])
    assert wire["left"] == [] and 0 < wire["lost"] < wire["frames"], wire
    told = distributed_jobs.said(here)
    assert here.returncode == 0, told
    done = load_checkpoint(RunFolder(there).steps()[-1]).state
    for step in range(1, min(done["step"], LAST) + 1):
        one, other = (load_checkpoint(RunFolder(out).step(step)) for out in runs)
        for name, array in (other.model | other.optimizer).items():
            assert (one.model | one.optimizer)[name].tobytes() == array.tobytes(), (step, name)
    waits = [entry["network"] for entry in RunFolder(there).metrics()]
    assert min(waits) >= 2 * DELAY  # the ranks' parts go there, their sums come back
    assert 2 * DELAY * done["step"] <= done["run"]["network"] <= done["run"]["seconds"]
    if done["step"] < LAST:
        train_run(RunConfig.from_dict(some(text, 1, LAST, **about)), there, resume=True, progress=False)
        check_same(alike, there, 1e-10)


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_two_hosts_leave_nothing_however_they_end(tmp_path, how):
    needs_two_hosts()
    mark = f"1{os.getpid()}"  # seconds, which nothing else sleeps
    with started(tmp_path / "told", "sh", "-c", f"sleep {mark} & echo there >&2; sleep {mark}") as process:
        while "there" not in (tmp_path / "told").read_text() and process.poll() is None:
            time.sleep(0.01)
        assert process.poll() is None
        process.stdin.close() if how == "closed" else process.kill()
        process.wait(timeout=120)
    end = time.monotonic() + 60
    while found := [pid for pid in os.listdir("/proc") if pid.isdigit() and f"sleep\0{mark}" in said_of(pid)]:
        assert time.monotonic() < end, found
        time.sleep(0.01)
