"""The display of a run: on the terminal, in a log, or in a notebook."""

from __future__ import annotations

from snugfit.display.notebook import NotebookScreen, in_notebook
from snugfit.display.terminal import TerminalDisplay

__all__ = ["TerminalDisplay", "display_here"]


def display_here() -> TerminalDisplay:
    """Return the display for Python code: an output of the notebook's cell, else what fits stderr."""
    return TerminalDisplay(screen=NotebookScreen() if in_notebook() else None)
