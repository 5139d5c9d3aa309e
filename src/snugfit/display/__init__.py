"""The display of a run on the terminal."""

from __future__ import annotations

from snugfit.display.terminal import TerminalDisplay

__all__ = ["TerminalDisplay"]
