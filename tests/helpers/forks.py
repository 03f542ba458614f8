"""Run programs in forks of the test process: they start in milliseconds and have their own streams and signals.

status, out, err = ran(lambda: main(["info", "base"]), closed=(0,))
fork = Fork(lambda: train(config, out)); fork.kill(SIGKILL); fork.wait()
"""

import os
import select
import signal
import sys
import tempfile
import traceback


class Fork:
    """A call in a child process. `streams` maps 0, 1, 2 to descriptors (None: closed; default: /dev/null)."""

    def __init__(self, call, streams=()):
        streams = dict(streams)
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._child(call, streams)
        self._watched = os.pidfd_open(self.pid)

    def _child(self, call, streams):
        status = 1
        try:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a fork does not copy its threads
            null = os.open(os.devnull, os.O_RDWR)
            copies = {n: fd if fd is None else os.dup(fd) for n, fd in {0: null, 1: null, 2: null, **streams}.items()}
            for number, name in enumerate(("stdin", "stdout", "stderr")):
                if copies[number] is None:
                    os.close(number)
                    stream = None
                else:
                    os.dup2(copies[number], number)
                    stream = open(number, "w" if number else "r", encoding="utf-8", closefd=False)
                setattr(sys, name, stream)
                setattr(sys, f"__{name}__", stream)
            status = call() or 0
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
        except KeyboardInterrupt:
            status = 130
        except BaseException:
            status = 99  # not an exit status of our programs
            try:
                traceback.print_exc()
                sys.stderr.flush()
            except BaseException:
                pass
        finally:
            os._exit(status)

    def kill(self, number):
        """Send a signal."""
        signal.pidfd_send_signal(self._watched, number)

    def ended(self, timeout=0.0):
        """Return whether the child ends within `timeout` seconds."""
        return bool(select.select([self._watched], [], [], timeout)[0])

    def wait(self, timeout=120.0):
        """Return the child's exit status, negative for a signal.

        After `timeout` seconds, kills the child and raises AssertionError.
        """
        late = not self.ended(timeout)
        if late:
            self.kill(signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._watched)
        assert not late, f"did not end within {timeout:g} s"
        return status


def ran(call, stdin=b"", timeout=120.0, closed=(), **streams):
    """Run a call in a fork; return (status, stdout, stderr). `stdin` is its content or a descriptor."""
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        if isinstance(stdin, bytes):
            source.write(stdin)
            source.seek(0)
            stdin = source.fileno()
        streams = {0: stdin, 1: streams.get("stdout", out.fileno()), 2: streams.get("stderr", err.fileno())}
        status = Fork(call, streams | dict.fromkeys(closed)).wait(timeout)
        for file in (out, err):
            file.seek(0)
        return status, out.read().decode(), err.read().decode()
