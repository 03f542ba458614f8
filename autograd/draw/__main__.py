"""`python -m autograd.draw EXPRESSION`: see graph.py."""

import sys

from autograd.draw.graph import main

sys.exit(main())
