"""`python -m train`: the command line of `train/cli/`, for environments without npx-transformer on the PATH."""

import sys

from train.cli import main

sys.exit(main())
