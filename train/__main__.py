"""`python -m train`: the command line of `train/cli/`, for where npx-transformer is not on the PATH."""

import sys

from train.cli import main

sys.exit(main())
