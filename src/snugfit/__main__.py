"""`python -m snugfit` is the command line."""

from __future__ import annotations

import sys

from snugfit.cli import main

if __name__ == "__main__":
    sys.exit(main())
