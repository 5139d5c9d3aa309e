"""The command line."""

from __future__ import annotations

from snugfit.cli.app import main, run

__all__ = ["main", "run"]
