"""`python -m tests.mutants`: report.py, in a module that other processes can import."""

import sys

from tests.mutants.report import main

sys.exit(main())
