"""Two simulated hosts on one machine, connected by a link with delay and packet loss.

    python -m tests.helpers.two_hosts --delay 0.02 --loss 0.01 mpirun -n 2 COMMAND

runs COMMAND on both. A host is a network namespace and a UTS namespace of Linux. The link transfers frames between TAP
devices on the hosts, delays every frame and drops some. This process is the first one of its own PID namespace: when it
ends, for whatever reason, the kernel ends all others and removes the devices, the namespaces and the temporary folder.
It ends when its command ends, or when its standard input is closed, for example because its parent ended. The line
`cut` on standard input cuts the link. Its last line on stderr reports as JSON the frames transferred and the processes
that were still running LEFT seconds after the command ended. The program needs root, /dev/net/tun and `ip`.
"""

import argparse
import ctypes
import fcntl
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

HOSTS = {"host-b": "10.77.0.2", "host-a": "10.77.0.1"}  # the command starts on the last one
ISOLATED = [
    "unshare",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
]  # runs a command as the first process of a PID namespace
NEW_NETWORK, NEW_NAME = 0x40000000, 0x04000000  # CLONE_NEWNET, CLONE_NEWUTS
TUNSETIFF, TAP = 0x400454CA, 0x1002  # IFF_TAP | IFF_NO_PI
TICK, LEFT = 0.05, 15.0  # seconds
PRIVATE = "/mnt"  # mount point of a tmpfs that only these processes see
AGENT = """#!/bin/sh
shift  # drops the name of the host
exec nsenter --net=/proc/1/fd/{} --uts=/proc/1/fd/{} sh -c "$*"
"""


def launch(*arguments, **options):
    """Start this module as a process that ends with this one."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [*ISOLATED, sys.executable, "-m", "tests.helpers.two_hosts", *map(str, arguments)], **(pipes | options)
    )


def host(name, address, mtu):
    """Move this process to a new host; return the descriptors of its TAP device and its two namespaces."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NETWORK | NEW_NAME):
        raise OSError(ctypes.get_errno(), "unshare")
    socket.sethostname(name)
    tap = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", b"wire", TAP))
    for line in ("link set lo up", f"addr add {address}/24 dev wire", f"link set wire mtu {mtu} up"):
        subprocess.run(["ip", *line.split()], check=True)
    return tap, os.open("/proc/self/ns/net", os.O_RDONLY), os.open("/proc/self/ns/uts", os.O_RDONLY)


class Wire:
    """Transfers frames between two TAP devices; `rate` is in bytes per second and direction."""

    def __init__(self, taps, delay, loss, rate, seed):
        self.peer = dict(zip(taps, reversed(taps), strict=True))
        self.in_flight = {tap: deque() for tap in taps}  # by destination: (arrival time, frame)
        self.free = dict.fromkeys(taps, 0.0)  # when the next frame to it can be sent
        self.delay, self.loss, self.rate, self.random = delay, loss, rate, random.Random(seed)
        self.frames = self.lost = 0
        self.cut = False

    def receive(self, tap):
        frame, to = os.read(tap, 1 << 16), self.peer[tap]
        if self.cut:
            return
        self.frames += 1
        if self.random.random() < self.loss:
            self.lost += 1
            return
        self.free[to] = max(time.monotonic(), self.free[to]) + len(frame) / self.rate
        self.in_flight[to].append((self.free[to] + self.delay, frame))

    def deliver(self):
        """Deliver the frames that have arrived; return the seconds until the next one."""
        for tap, frames in self.in_flight.items():
            while frames and frames[0][0] <= time.monotonic():
                os.write(tap, frames.popleft()[1])
        due = min((frames[0][0] for frames in self.in_flight.values() if frames), default=float("inf"))
        return min(TICK, max(0.0, due - time.monotonic()))


def command_on(spaces, command):
    """Start a command whose mpirun can launch processes on both hosts; return its process ID."""
    subprocess.run(["mount", "-t", "tmpfs", "wire", PRIVATE], check=True)
    agent, hosts = Path(PRIVATE, "agent"), Path(PRIVATE, "hosts")
    agent.write_text(AGENT.format(*spaces))
    agent.chmod(0o700)
    hosts.write_text("".join(f"{name} slots=1\n" for name in reversed(HOSTS)))
    settings = {"PRTE_MCA_plm_ssh_agent": str(agent), "PRTE_MCA_prte_default_hostfile": str(hosts), "TMPDIR": PRIVATE}
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=os.environ | settings).pid


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds, in each direction")
    parser.add_argument("--loss", type=float, default=0.0, help="fraction of frames that are lost")
    parser.add_argument("--rate", type=float, default=float("inf"), help="bytes per second, in each direction")
    parser.add_argument("--mtu", type=int, default=1500, help="bytes per frame")
    parser.add_argument("--seed", type=int, default=0, help="seed of the packet loss")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    (b, *spaces), (a, *_) = (host(name, address, args.mtu) for name, address in HOSTS.items())
    wire = Wire([a, b], args.delay, args.loss, args.rate, args.seed)
    command, status, end = command_on(spaces, args.command), 1, float("inf")
    with suppress(ChildProcessError):  # no process is left; orphans become children of this process
        while time.monotonic() < end:
            for source in select.select([a, b, 0], [], [], wire.deliver())[0]:
                if source:
                    wire.receive(source)
                elif line := os.read(0, 100):
                    wire.cut = wire.cut or line == b"cut\n"
                else:
                    os._exit(1)
            pid, wait_status = os.waitpid(-1, os.WNOHANG)
            if pid == command:
                status, end = os.waitstatus_to_exitcode(wait_status), time.monotonic() + LEFT
    left = [Path(f"/proc/{pid}/cmdline").read_text() for pid in os.listdir("/proc") if pid.isdigit() and pid != "1"]
    sys.stderr.write(json.dumps({"frames": wire.frames, "lost": wire.lost, "left": left}) + "\n")
    sys.exit(status)


if __name__ == "__main__":
    main()
