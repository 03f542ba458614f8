"""The command line: `main`, for the entry point and `python -m train`. One file a command."""

import sys
from typing import Any

try:
    from train.cli.main import main
except KeyboardInterrupt:
    sys.exit(130)
except ValueError as error:  # npx refuses an environment variable
    refused = str(error)

    def main(argv: Any = None) -> int:
        """Says so; exit status 2."""
        print(f"npx-transformer: {refused}", file=sys.stderr)
        return 2


__all__ = ["main"]
