"""Results that show themselves: a few lines in Python, their page in a notebook."""

from __future__ import annotations

import html
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence

MOST_LINES = 12
_HEIGHT = 560


def with_breaks(text: str) -> str:
    """Return text of HTML that a narrow page breaks behind a dot, an underscore or a slash, not within a word of a name or a path."""
    return re.sub(r"(?<=[\w/][._/])(?=[A-Za-z])", "<wbr>", text)


class Shown(ABC):
    """A result with a short text in place of its fields, and with its page, chart included, in a notebook.

    Its dataclass says `repr=False`, or the fields would be what is shown.
    """

    @abstractmethod
    def summary_lines(self) -> Sequence[str]:
        """Return what there is to say, in at most `MOST_LINES` lines."""

    def page(self) -> str | None:
        """Return the page as text; None where there is none."""
        return None

    def __repr__(self) -> str:
        lines = list(self.summary_lines())
        if len(lines) > MOST_LINES:
            lines = [*lines[: MOST_LINES - 1], f"  … and {len(lines) - MOST_LINES + 1} more"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return what IPython shows: the text, and the page in a frame, so that neither's styles reach the other."""
        text, page = (
            f"<pre style='white-space:break-spaces;overflow-wrap:anywhere'>{with_breaks(html.escape(repr(self)))}</pre>",
            self.page(),
        )
        if page is None:
            return text
        style = f"width:100%;height:{_HEIGHT}px;border:0"
        return f'{text}<iframe srcdoc="{html.escape(page)}" style="{style}" title="page"></iframe>'
