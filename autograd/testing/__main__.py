"""`python -m autograd.testing check MODULE` and `python -m autograd.testing mutate MODULE`."""

import sys

from autograd.testing import check_command, mutate

COMMANDS = {"check": check_command.main, "mutate": mutate.main}

if __name__ == "__main__":
    if sys.argv[1:2] in (["--help"], ["-h"]):
        sys.stdout.write(f"{__doc__}\nBoth commands accept --help.\n")
        sys.exit(0)
    if not sys.argv[1:] or sys.argv[1] not in COMMANDS:
        got = f"got {sys.argv[1]!r}" if sys.argv[1:] else "got no command"
        sys.stderr.write(f"autograd.testing: expected the command check or mutate; {got}; try `check --help`\n")
        sys.exit(2)
    sys.exit(COMMANDS[sys.argv[1]](sys.argv[2:]))
