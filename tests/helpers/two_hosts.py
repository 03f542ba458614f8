"""Two hosts of one machine, joined by a wire that is slow and loses frames.

    python -m tests.helpers.two_hosts --delay 0.02 --loss 0.01 mpirun -n 2 COMMAND

runs COMMAND on both. A host is a network and a name of its own (Linux's namespaces); the wire carries frames between a
TAP device on each, every frame later by so many seconds, and some not at all. All of it is held by this one process,
the first of process numbers of its own: when it ends, however it does, the kernel ends all others, and devices,
namespaces and the folder for temporary files are gone. It ends with its command, or when standard input does, which is
with whoever started it. A line `cut` on standard input cuts the wire. Its last line on stderr says in JSON what went
over the wire, and what was still running LEFT seconds after the command's end. Needs root, /dev/net/tun and `ip`.
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

HOSTS = {"host-b": "10.77.0.2", "host-a": "10.77.0.1"}  # on the last the command is started
ALONE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]  # starts the first of new process numbers
NEW_NETWORK, NEW_NAME = 0x40000000, 0x04000000  # CLONE_NEWNET, CLONE_NEWUTS
TUNSETIFF, TAP = 0x400454CA, 0x1002  # IFF_TAP | IFF_NO_PI
TICK, LEFT = 0.05, 15.0  # seconds
OWN = "/mnt"  # where these processes see a folder in memory that nobody else sees
AGENT = """#!/bin/sh
shift  # the name of the host
exec nsenter --net=/proc/1/fd/{} --uts=/proc/1/fd/{} sh -c "$*"
"""


def started(*arguments, **how):
    """A process of this module, which ends with this one."""
    about = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True} | how
    return subprocess.Popen([*ALONE, sys.executable, "-m", "tests.helpers.two_hosts", *map(str, arguments)], **about)


def host(name, address, mtu):
    """Moves this process to a new host: the descriptors of its TAP device, network and name."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NETWORK | NEW_NAME):
        raise OSError(ctypes.get_errno(), "unshare")
    socket.sethostname(name)
    tap = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", b"wire", TAP))
    for line in ("link set lo up", f"addr add {address}/24 dev wire", f"link set wire mtu {mtu} up"):
        subprocess.run(["ip", *line.split()], check=True)
    return tap, os.open("/proc/self/ns/net", os.O_RDONLY), os.open("/proc/self/ns/uts", os.O_RDONLY)


class Wire:
    """What carries frames from one TAP device to another; `rate`: bytes a second in each direction."""

    def __init__(self, taps, delay, loss, rate, seed):
        self.to = dict(zip(taps, reversed(taps), strict=True))
        self.under_way = {tap: deque() for tap in taps}  # to that device: when a frame arrives, and the frame
        self.free = dict.fromkeys(taps, 0.0)  # when the next frame to it can go
        self.delay, self.loss, self.rate, self.random = delay, loss, rate, random.Random(seed)
        self.frames = self.lost = 0
        self.cut = False

    def take(self, tap):
        frame, to = os.read(tap, 1 << 16), self.to[tap]
        if self.cut:
            return
        self.frames += 1
        if self.random.random() < self.loss:
            self.lost += 1
            return
        self.free[to] = max(time.monotonic(), self.free[to]) + len(frame) / self.rate
        self.under_way[to].append((self.free[to] + self.delay, frame))

    def give(self):
        """Hands over what has arrived; seconds until there is more to do."""
        for tap, frames in self.under_way.items():
            while frames and frames[0][0] <= time.monotonic():
                os.write(tap, frames.popleft()[1])
        due = min((frames[0][0] for frames in self.under_way.values() if frames), default=float("inf"))
        return min(TICK, max(0.0, due - time.monotonic()))


def command_on(spaces, command):
    """The process number of a command whose mpirun knows both hosts, and how to start something on the other."""
    subprocess.run(["mount", "-t", "tmpfs", "wire", OWN], check=True)
    agent, hosts = Path(OWN, "agent"), Path(OWN, "hosts")
    agent.write_text(AGENT.format(*spaces))
    agent.chmod(0o700)
    hosts.write_text("".join(f"{name} slots=1\n" for name in reversed(HOSTS)))
    told = {"PRTE_MCA_plm_ssh_agent": str(agent), "PRTE_MCA_prte_default_hostfile": str(hosts), "TMPDIR": OWN}
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=os.environ | told).pid


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds, in each direction")
    parser.add_argument("--loss", type=float, default=0.0, help="share of the frames")
    parser.add_argument("--rate", type=float, default=float("inf"), help="bytes a second, in each direction")
    parser.add_argument("--mtu", type=int, default=1500, help="bytes of a frame")
    parser.add_argument("--seed", type=int, default=0, help="of what is lost")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    (b, *spaces), (a, *_) = (host(name, address, args.mtu) for name, address in HOSTS.items())
    wire = Wire([a, b], args.delay, args.loss, args.rate, args.seed)
    command, status, end = command_on(spaces, args.command), 1, float("inf")
    with suppress(ChildProcessError):  # nobody is left: who loses its parent becomes a child of the first process
        while time.monotonic() < end:
            for source in select.select([a, b, 0], [], [], wire.give())[0]:
                if source:
                    wire.take(source)
                elif told := os.read(0, 100):
                    wire.cut = wire.cut or told == b"cut\n"
                else:
                    os._exit(1)
            pid, found = os.waitpid(-1, os.WNOHANG)
            if pid == command:
                status, end = os.waitstatus_to_exitcode(found), time.monotonic() + LEFT
    left = [Path(f"/proc/{pid}/cmdline").read_text() for pid in os.listdir("/proc") if pid.isdigit() and pid != "1"]
    sys.stderr.write(json.dumps({"frames": wire.frames, "lost": wire.lost, "left": left}) + "\n")
    sys.exit(status)


if __name__ == "__main__":
    main()
