"""The command line."""

from __future__ import annotations

from snugfit.cli.app import main

__all__ = ["main"]
