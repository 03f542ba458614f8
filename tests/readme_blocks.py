"""Type the shell blocks of README.md in order, in one bash session, and print the seconds that each block took.

Run it by hand in a fresh clone, without an active environment: `python3 -m tests.readme_blocks`. It needs a network for
the installation and about ten minutes. It stops at the first command that fails and exits with that command's status.
"""

import re
import subprocess
import sys

from tests import ROOT


def shell_blocks(page: str) -> list[str]:
    """Return the text of every ```sh block of a Markdown page, in order."""
    return re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def session(blocks: list[str]) -> str:
    """Return one bash script that runs all blocks and prints the seconds after each."""
    lines = ["set -e"]
    for number, block in enumerate(blocks, 1):
        lines += ["SECONDS=0", block, f'echo "block {number} of {len(blocks)}: $SECONDS s"']
    return "\n".join(lines)


def main() -> int:
    blocks = shell_blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    return subprocess.run(["bash", "-c", session(blocks)], cwd=ROOT, stdin=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    sys.exit(main())
