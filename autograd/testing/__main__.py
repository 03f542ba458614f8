"""`python -m autograd.testing mutate MODULE`: see mutate.py."""

import sys

from autograd.testing import mutate

if __name__ == "__main__":
    if sys.argv[1:2] != ["mutate"]:
        got = f"got {sys.argv[1]!r}" if sys.argv[1:] else "got no command"
        sys.stderr.write(f"autograd.testing: expected the command mutate; {got}; try `mutate --help`\n")
        sys.exit(2)
    sys.exit(mutate.main(sys.argv[2:]))
