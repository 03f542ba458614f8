"""Command line: `main`, called by the `npx-transformer` script and by `python -m train`. One file per command."""

import sys
from typing import Any

try:
    from train.cli.main import main
except KeyboardInterrupt:
    sys.exit(130)
except ValueError as error:  # npx raises a ValueError on import for an invalid environment variable
    import_error = str(error)

    def main(argv: Any = None) -> int:  # type: ignore[misc]
        """Report the import error and return exit status 2."""
        print(f"npx-transformer: {import_error}", file=sys.stderr)
        return 2


__all__ = ["main"]
