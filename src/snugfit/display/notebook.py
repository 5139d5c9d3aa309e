"""A run in a notebook: one HTML output, written anew in place; no widgets."""

from __future__ import annotations

import html
import sys
from collections.abc import Sequence
from typing import Any

from snugfit.display.event_lines import progress_parts
from snugfit.display.run_state import Standing
from snugfit.display.terminal import TerminalDisplay
from snugfit.results.shown import with_breaks

_COLOURS = {"yellow": "#b7791f", "green": "#2e9e56", "red": "#e5484d"}
"""Of the stroke beside a line: the line itself has the notebook's own colour, which can be read on its ground, light or dark."""

_MOST_LINES = 200
"""Lines and rows that are kept; older ones go, so that a long run does not fill the notebook's file."""


def in_notebook() -> bool:
    """Return whether this code runs in a cell of a notebook, whose outputs can be replaced."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def display_here() -> TerminalDisplay:
    """Return the display for Python code: an output of the notebook's cell, else what fits stderr."""
    return TerminalDisplay(screen=NotebookScreen() if in_notebook() else None)


class NotebookScreen:
    """Lines, tables and progress as one output of the cell that begins it."""

    interval = 0.5

    def __init__(self) -> None:
        self._parts: list[tuple[str, str]] = []
        self._progress = ""
        self._shown: Any = None

    def say(self, text: str, style: str = "") -> None:
        """Add a line."""
        self._add("line", f'<div style="{_css(style)}">{with_breaks(html.escape(text))}</div>')

    def row(self, cells: Sequence[str], heads: Sequence[str], mark: str = "", style: str = "") -> None:
        """Add a row to the table at the end; the heads themselves begin another one."""
        kind = "th" if list(cells) == list(heads) else "td"
        inside = "".join(
            f'<{kind} style="text-align: right; padding: 0 8px">{html.escape(each)}</{kind}>'
            for each in cells
        )
        self._add(
            "row",
            f'<tr style="{_css(style)}">{inside}<td style="text-align: left">{html.escape(mark.strip())}</td></tr>',
        )

    def wait(self, text: str) -> None:
        """Say what is done before the first update."""
        self._progress = f"<div>{html.escape(text)}</div>"
        self._draw()

    def during(self, text: str) -> None:
        self.wait(f"{text} …")

    def progress(self, standing: Standing) -> None:
        """Draw the bar."""
        figures = html.escape("  ".join(text.strip() for _, text in progress_parts(standing)))
        bar = (
            f'<progress value="{standing.window}" max="{standing.total}"></progress> '
            if standing.total
            else ""
        )
        self._progress = f"<div>{bar}{figures}</div>"
        self._draw()

    def close(self) -> None:
        """Take the bar away."""
        self._progress = ""
        self._draw()

    def _add(self, kind: str, text: str) -> None:
        self._parts = [*self._parts, (kind, text)][-_MOST_LINES:]
        self._draw()

    def _draw(self) -> None:
        from IPython.display import HTML, display

        output = HTML(
            f'<div style="font-family: monospace; white-space: pre-wrap; overflow-wrap: break-word; overflow-x: auto">{self._body()}{self._progress}</div>'
        )
        if self._shown is None:
            self._shown = display(output, display_id=True)
        else:
            self._shown.update(output)

    def _body(self) -> str:
        body, in_table = "", False
        for kind, text in self._parts:
            if in_table != (kind == "row"):
                body += "</table>" if in_table else '<table style="font-size: inherit">'
                in_table = not in_table
            body += text
        return body + ("</table>" if in_table else "")


def _css(style: str) -> str:
    colours = [_COLOURS[name] for name in style.split() if name in _COLOURS]
    rules = [f"box-shadow: inset 3px 0 {colour}; padding-left: 8px" for colour in colours]
    rules += ["font-weight: bold"] if "bold" in style else []
    rules += ["opacity: 0.75"] if style == "dim" else []
    return "; ".join(rules)
