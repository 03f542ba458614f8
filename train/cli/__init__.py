"""The command line: `main`, for the entry point and `python -m train`. One file a command."""

import sys
from collections.abc import Sequence

try:
    from train.cli.main import main
except KeyboardInterrupt:
    sys.exit(130)
except ValueError as error:  # an invalid environment variable
    problem = str(error)

    def main(argv: Sequence[str] | None = None) -> int:
        """Report the problem; return exit status 2."""
        print(f"npx-transformer: {problem}", file=sys.stderr)
        return 2


__all__ = ["main"]
