"""The outlets of a run's text: a terminal with a bar that is redrawn, or a file with plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn, Protocol, TextIO

from snugfit.display.activity import SILENCE_SECONDS, Activity
from snugfit.display.consoles import plain_console
from snugfit.display.event_lines import progress_parts, table_row
from snugfit.display.run_state import Standing

if TYPE_CHECKING:
    from rich.text import Text

_BAR_LEAST = 10
_GAP = "  "

_SILENT_SHARE, _LONGEST_SILENCE = 0.01, 60.0
"""Of the time that updates have taken, and in seconds: the silence between two lines of a log."""


class Screen(Protocol):
    """Takes lines that stay, and progress that may be drawn over."""

    @property
    def interval(self) -> float: ...

    def say(self, text: str, style: str = "") -> None: ...

    def row(self, cells: Sequence[str], heads: Sequence[str], mark: str = "", style: str = "") -> None: ...

    def wait(self, text: str) -> None: ...

    def during(self, text: str) -> None: ...

    def progress(self, standing: Standing) -> None: ...

    def close(self) -> None: ...


def make_screen(stream: TextIO | None) -> Screen:
    """Return the screen that fits the stream, stderr by default."""
    if (stream or sys.stderr).isatty():
        screen = LiveScreen(stream)
        if screen.can_redraw:
            return screen
    return PlainScreen(stream or sys.stderr)


class _Lines:
    """The common part of screens whose tables are lines of text."""

    def say(self, text: str, style: str = "") -> None:
        raise NotImplementedError

    def row(self, cells: Sequence[str], heads: Sequence[str], mark: str = "", style: str = "") -> None:
        """Say one row of a table, in columns as wide as their heads, and a `mark` behind it."""
        self.say(f"{table_row(cells, heads)}{mark}".rstrip(), style)


class PlainScreen(_Lines):
    """Lines only, for logs: at first one every few seconds, for whoever watches; of a run of hours one a minute."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._activity = Activity(stream=stream, clock=clock)
        self._clock, self._began = clock, clock()

    @property
    def interval(self) -> float:
        """Return seconds between lines of progress: less than an update may last before that is said, where none lasts that long."""
        return 0.75 * self._activity.silence

    def say(self, text: str, style: str = "") -> None:  # noqa: ARG002  # a log has no colours
        self._activity.write(text)

    def wait(self, text: str) -> None:
        self._activity.silence = SILENCE_SECONDS
        self._activity.during(text)
        self._activity.__enter__()  # says it

    def during(self, text: str) -> None:
        self._activity.silence = SILENCE_SECONDS
        self._activity.during(text)

    def progress(self, standing: Standing) -> None:
        lasted = self._clock() - self._began
        self._activity.silence = max(SILENCE_SECONDS, min(_LONGEST_SILENCE, _SILENT_SHARE * lasted))
        self._activity.during(f"after update {standing.update:,}")
        self.say(_GAP.join(text.strip() for _, text in progress_parts(standing)))

    def close(self) -> None:
        self._activity.close()


class LiveScreen(_Lines):
    """A line at the bottom of the terminal, drawn when asked, and each second while something else than updates lasts."""

    interval = 0.1

    def __init__(self, stream: TextIO | None) -> None:
        from rich.live import Live

        self._activity = Activity(quiet=True, redraw=self._redraw)
        self._standing: Standing | None = None
        self._console = plain_console(stream, stderr=stream is None)
        # rich's own answer to a terminal that went away is to end the process
        self._console.on_broken_pipe = _raise_again  # type: ignore[method-assign]
        self.can_redraw = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
            get_renderable=self._line,
        )

    def say(self, text: str, style: str = "") -> None:
        from rich.text import Text

        self._console.print(Text(text, style), soft_wrap=True)

    def wait(self, text: str) -> None:
        self._activity.during(text)
        self._draw()

    def during(self, text: str) -> None:
        """Draw a line that stands there until the next update."""
        self.wait(text)

    def progress(self, standing: Standing) -> None:
        self._standing = standing
        self._activity.during("")
        self._draw()

    def close(self) -> None:
        self._activity.close()  # nothing is drawn behind it
        self._live.stop()

    def _draw(self) -> None:
        if not self._live.is_started:
            self._activity.__enter__()  # others are silent meanwhile
            self._live.start()
        self._live.refresh()

    def _redraw(self) -> None:
        if self._live.is_started:
            self._live.refresh()

    def _line(self) -> Text:
        from rich.text import Text

        waiting = self._activity.line()
        if self._standing is None:
            return Text(waiting, "dim", no_wrap=True, overflow="crop")
        # room for the ^C that a terminal writes behind the bar
        return bar_line(
            self._standing, self._console.width - 3, self._console.encoding.startswith("utf"), waiting
        )


def _raise_again() -> NoReturn:
    raise  # what the handler that calls this has caught


def bar_line(standing: Standing, width: int, unicode: bool = True, doing: str = "") -> Text:
    """Bar and figures on one line of at most `width` columns; what does not fit is left out by its rank.

    Args:
        doing: in place of the figures, while no update is made.
    """
    from rich.text import Text

    parts = [(0, doing)] if doing else progress_parts(standing)
    least = _BAR_LEAST if standing.total else 0
    while len(parts) > 1 and sum(len(text) + len(_GAP) for _, text in parts) + least > width:
        parts.remove(max(parts))
    line = Text(no_wrap=True, overflow="crop")
    if standing.total:
        room = min(40, width - sum(len(text) + len(_GAP) for _, text in parts))
        done = max(0, min(room, round(room * standing.window / standing.total)))
        full, empty = ("━", "─") if unicode else ("#", "-")
        line.append(full * done, "green").append(empty * (room - done), "dim").append(_GAP)
    line.append(_GAP.join(text for _, text in parts))
    return line
