"""`python -m snugfit` is the command line."""

from __future__ import annotations

from snugfit.cli import main
from snugfit.system.processes import leave

if __name__ == "__main__":
    leave(main())
