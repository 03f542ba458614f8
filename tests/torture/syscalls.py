"""The system calls of a forked program, which this process observes and answers before the kernel executes them.

    status = supervise(call, folder, lambda call: errno.EIO if call.kind == "fsync" else 0)

The fork installs a seccomp filter that asks this process about each call in CALLS (seccomp_unotify(2)), so calls made
by C and Rust libraries are seen too. `unsupported` says why this does not work here: it needs Linux 5.5 on x86-64 and a
container that allows it. Calls through io_uring, which bypasses these system calls, would not be seen; no library here
uses it.
"""

import ctypes
import fcntl
import os
import platform
import select
import signal
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property

from tests.helpers.forks import Fork

AT_FDCWD = -100
# Number on x86-64 -> name, kind, arguments: p path, f descriptor, d descriptor of the folder of the path that follows,
# b buffer, n its length, o offset, w flags, _ ignored.
CALLS = {
    2: ("open", "open", "pw"), 257: ("openat", "open", "dpw"), 85: ("creat", "open", "p"),
    0: ("read", "read", "f"), 17: ("pread64", "read", "f"), 19: ("readv", "read", "f"), 40: ("sendfile", "read", "_f"),
    1: ("write", "write", "fbn"), 18: ("pwrite64", "write", "fbno"), 20: ("writev", "write", "f"),
    296: ("pwritev", "write", "f"), 326: ("copy_file_range", "write", "__f"), 285: ("fallocate", "write", "f"),
    74: ("fsync", "fsync", "f"), 75: ("fdatasync", "fsync", "f"),
    76: ("truncate", "truncate", "pn"), 77: ("ftruncate", "truncate", "fn"),
    82: ("rename", "rename", "pp"), 264: ("renameat", "rename", "dpdp"), 316: ("renameat2", "rename", "dpdp"),
    86: ("link", "link", "pp"), 265: ("linkat", "link", "dpdp"), 88: ("symlink", "link", "_p"),
    266: ("symlinkat", "link", "_dp"), 87: ("unlink", "unlink", "p"), 263: ("unlinkat", "unlink", "dpw"),
    84: ("rmdir", "rmdir", "p"), 83: ("mkdir", "mkdir", "p"), 258: ("mkdirat", "mkdir", "dp"),
    9: ("mmap", "allocate", "____f"), 12: ("brk", "allocate", ""),
}  # fmt: skip
KINDS = sorted({kind for _, kind, _ in CALLS.values()})
AT_REMOVEDIR = 0x200
SECONDS = 60
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1  # ioctls of a seccomp listener, and a flag of the answer


@dataclass
class Call:
    """A system call that a process is about to make."""

    pid: int
    name: str
    arguments: tuple[int, ...]
    form: str
    kind: str

    @cached_property
    def paths(self):
        """The absolute paths, or those of the open files, that the call refers to."""
        paths, folder = [], AT_FDCWD
        for letter, value in zip(self.form, self.arguments, strict=False):
            if letter == "d":
                folder = ctypes.c_int32(value).value
            elif letter == "p":
                base = f"/proc/{self.pid}/cwd" if folder == AT_FDCWD else f"/proc/{self.pid}/fd/{folder}"
                paths.append(os.path.normpath(os.path.join(os.readlink(base), _string(self.pid, value))))
                folder = AT_FDCWD
            elif letter == "f" and ctypes.c_int32(value).value >= 0:
                paths.append(os.readlink(f"/proc/{self.pid}/fd/{value}"))
        return paths

    def argument(self, letter):
        """Return the argument with a letter of CALLS, or 0."""
        return self.arguments[self.form.index(letter)] if letter in self.form else 0

    @cached_property
    def data(self):
        """The bytes that a write is about to write."""
        assert "b" in self.form, f"{self.name} is not modeled"
        return _memory(self.pid, self.argument("b"), self.argument("n"))

    @property
    def offset(self):
        """The position in the file at which a write starts; None for its end."""
        if "o" in self.form:
            return self.argument("o")
        with open(f"/proc/{self.pid}/fdinfo/{self.argument('f')}") as file:
            fields = dict(line.split(":", 1) for line in file)
        return None if int(fields["flags"], 8) & os.O_APPEND else int(fields["pos"])


def supervise(call, folder, answer, kinds=KINDS, streams=(), setup=lambda: None):
    """Run `call` in a fork and return its exit status, or -SIGALRM if it hangs, making no call for SECONDS.

    `answer(call)` is called before each system call of one of `kinds` that refers to `folder` or allocates memory; it
    returns 0 to let the kernel execute the call, or the errno with which it fails. `setup` runs in the fork,
    unobserved.
    """
    ours, theirs = socket.socketpair()

    def child():
        setup()
        listener = _install([number for number, (_, kind, _) in CALLS.items() if kind in kinds])
        socket.send_fds(theirs, [b"-"], [listener])
        os.close(listener)
        return call()

    fork = Fork(child, streams)
    theirs.close()
    listener = -1
    try:
        with ours:
            listener = socket.recv_fds(ours, 1, 1)[1][0]
        if _serve(listener, os.fspath(folder), answer):
            fork.kill(signal.SIGKILL)
            fork.wait()
            return -signal.SIGALRM
    except BaseException:
        fork.kill(signal.SIGKILL)
        fork.wait()
        raise
    finally:
        if listener >= 0:
            os.close(listener)
    return fork.wait()


def _serve(listener, folder, answer):
    """Answer calls until the processes have ended; return whether they hang instead."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while True:
        events = poll.poll(1000 * SECONDS)
        if not events or not events[0][1] & select.POLLIN:
            return not events  # without POLLIN, every process under the filter has ended
        request = bytearray(80)
        try:
            fcntl.ioctl(listener, _RECEIVE, request)
        except FileNotFoundError:
            continue  # the process was killed in the meantime
        identifier, pid, _, number, _, _, *arguments = struct.unpack("QIIiIQ6Q", request)
        name, kind, form = CALLS[number]
        call = Call(pid, name, tuple(arguments), form, "rmdir" if _removes_folder(name, arguments) else kind)
        try:
            is_file = any(path == folder or path.startswith(f"{folder}/") for path in call.paths)
            is_allocation = kind == "allocate" and not call.paths
            error = (is_file or is_allocation) and answer(call) or 0
        except (FileNotFoundError, ProcessLookupError):  # the process was killed in the meantime
            error = 0
        with suppress(FileNotFoundError):
            fcntl.ioctl(listener, _SEND, bytearray(struct.pack("QqiI", identifier, 0, -error, 0 if error else 1)))


def _removes_folder(name, arguments):
    return name == "unlinkat" and arguments[2] & AT_REMOVEDIR


def _install(numbers):
    """Install a filter in this process that asks about the calls with these numbers; return the listener."""
    libc = ctypes.CDLL(None, use_errno=True)
    load, jump_if_equal, end = 0x20, 0x15, 0x06
    steps = [(load, 0, 0, 0), *((jump_if_equal, len(numbers) - i, 0, n) for i, n in enumerate(numbers))]
    steps += [(end, 0, 0, 0x7FFF0000), (end, 0, 0, 0x7FC00000)]  # allow; ask
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)))
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS, without which only root may filter
    listener = libc.syscall(317, 1, 8, program)  # seccomp, SECCOMP_SET_MODE_FILTER, ..._FLAG_NEW_LISTENER
    if listener < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return listener


def _memory(pid, address, size):
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        return os.pread(file.fileno(), size, address)


def _string(pid, address):
    """Return a NUL-terminated string, read page by page."""
    raw = b""
    while b"\0" not in raw:
        raw += _memory(pid, address + len(raw), 4096 - (address + len(raw)) % 4096)
    return os.fsdecode(raw.partition(b"\0")[0])


@cache
def unsupported():
    """Return why `supervise` does not work here, or ""."""
    if platform.machine() != "x86_64" or not hasattr(os, "pidfd_open"):
        return "needs Linux on x86-64"
    calls = []
    try:
        status = supervise(lambda: os.access("/", os.R_OK) and os.mkdir("/nowhere/x"), "/nowhere", calls.append)
    except (OSError, IndexError) as error:
        return f"needs seccomp's user notifications: {error}"
    return "" if calls and status == 99 else "needs seccomp's user notifications (Linux 5.5)"
