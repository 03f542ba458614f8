"""Training on two simulated hosts (two_hosts.py) whose link is slow, loses frames and is finally cut."""

import json
import os
import re
import shutil
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests import ROOT
from tests.helpers import distributed_jobs, two_hosts
from tests.train.test_distributed import check_same, config_tables
from train import RunConfig
from train import train as train_run
from train.run.checkpoint import load_checkpoint
from train.run.folder import RunFolder

DELAY, LOSS = 0.02, 0.01
LAST = 12  # the last update of the run on one host


def needs_two_hosts():
    """Skip the test if this process may not create namespaces."""
    for requirement, is_met in (
        ("root", hasattr(os, "geteuid") and os.geteuid() == 0),
        ("/dev/net/tun", os.path.exists("/dev/net/tun")),
        *((program, shutil.which(program)) for program in ("unshare", "nsenter", "ip", "mount")),
    ):
        if not is_met:
            pytest.skip(f"needs {requirement}")
    with two_hosts.launch("true", cwd=ROOT) as process:
        errors = process.stderr.read()
    if process.returncode and ("ermission" in errors or "permitted" in errors):
        pytest.skip(f"needs permission to create namespaces: {errors.splitlines()[-1]}")


@contextmanager
def launched(stderr, *arguments, **options):
    """Run two hosts until the block ends; their stderr goes to a file."""
    with open(stderr, "w") as file, two_hosts.launch(*arguments, cwd=ROOT, stderr=file, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def command_of(pid):
    """Return the command line of a process, or "" if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def steps(out):
    return [int(path.name.removeprefix("step-")) for path in RunFolder(out).step_paths()]


@pytest.mark.slow
def test_a_lossy_network_changes_no_bit_and_a_cut_one_ends_the_run(text, tmp_path):
    """This is a single test so that mpirun runs at the same time on two hosts and on one."""
    distributed_jobs.needs_mpi()
    needs_two_hosts()
    changes = {"precision": "float64", "gradient_accumulation_steps": 1, "rank_timeout": 5.0, "keep_last": 1000}
    changes |= {"log_every": 1, "checkpoint_every": 1, "validate_every": 10**6}
    jobs, runs = [tmp_path / name for name in ("two.json", "one.json")], [tmp_path / "two", tmp_path / "one"]
    for file, out, last in zip(jobs, runs, (10**6, LAST), strict=True):
        file.write_text(
            json.dumps([("train", 2, {"tables": config_tables(text, 2, last, **changes), "out": str(out)})])
        )
    module = ["-m", "tests.helpers.distributed_jobs"]
    environment = os.environ | distributed_jobs.QUIET | distributed_jobs.AS_ROOT | {"NPX_KILL_LAUNCHER": "1"}
    on_one_host, (two_hosts_run, one_host_run) = distributed_jobs.launch(2, *module, jobs[1]), runs
    command = ["--delay", DELAY, "--loss", LOSS, *distributed_jobs.command(2, *module, jobs[0])]
    with launched(tmp_path / "stderr", *command, env=environment) as process:
        while len(steps(two_hosts_run)) < 6 and process.poll() is None:  # bounded by the timeout of the ranks
            time.sleep(0.05)
        process.stdin.write("cut\n")
        process.stdin.flush()
        status = process.wait(timeout=120)
    errors = (tmp_path / "stderr").read_text()
    messages = re.findall(r"npx-transformer: (.*), step \d+: (.*)", errors)  # among mpirun's messages
    assert status == 1, errors
    reason = "no heartbeat for 5 s (train.rank_timeout); the run ends; try --resume"
    assert messages == [("rank 1 of 2 (host-b)", reason)], errors
    wire = json.loads(errors[errors.rindex("{") :])
    assert wire["left"] == [] and 0 < wire["lost"] < wire["frames"], wire
    errors = distributed_jobs.stderr_of(on_one_host)
    assert on_one_host.returncode == 0, errors
    done = load_checkpoint(RunFolder(two_hosts_run).step_paths()[-1]).state
    for step in range(1, min(done["step"], LAST) + 1):
        one, other = (load_checkpoint(RunFolder(out).step_path(step)) for out in runs)
        for name, array in (other.weights | other.optimizer_arrays).items():
            assert (one.weights | one.optimizer_arrays)[name].tobytes() == array.tobytes(), (step, name)
    waits = [entry["network"] for entry in RunFolder(two_hosts_run).metrics()]
    assert min(waits) >= 2 * DELAY  # the gradients go one way, their sums come back
    assert 2 * DELAY * done["step"] <= done["run"]["network"] <= done["run"]["seconds"]
    if done["step"] < LAST:
        train_run(
            RunConfig.from_dict(config_tables(text, 1, LAST, **changes)), two_hosts_run, resume=True, progress=False
        )
        check_same(one_host_run, two_hosts_run, 1e-10)


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_two_hosts_leave_no_process_behind(tmp_path, end):
    needs_two_hosts()
    mark = f"1{os.getpid()}"  # seconds; identifies these sleep processes
    with launched(tmp_path / "stderr", "sh", "-c", f"sleep {mark} & echo ready >&2; sleep {mark}") as process:
        while "ready" not in (tmp_path / "stderr").read_text() and process.poll() is None:
            time.sleep(0.01)
        assert process.poll() is None
        process.stdin.close() if end == "closed" else process.kill()
        process.wait(timeout=120)
    deadline = time.monotonic() + 60
    while remaining := [pid for pid in os.listdir("/proc") if pid.isdigit() and f"sleep\0{mark}" in command_of(pid)]:
        assert time.monotonic() < deadline, remaining
        time.sleep(0.01)
