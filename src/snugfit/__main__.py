"""`python -m snugfit` is the command line."""

from __future__ import annotations

from snugfit.cli import run

if __name__ == "__main__":
    run()
