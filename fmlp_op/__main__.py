"""`python -m fmlp_op`: see fmlp_op.cli."""

import sys

from fmlp_op.cli import main

sys.exit(main())
