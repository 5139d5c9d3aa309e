"""The parts that commands of many runs share: what shows each run, and how the whole ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from snugfit.cli.common.output import show
from snugfit.cli.common.training import EXIT_CODES
from snugfit.errors import short_path

if TYPE_CHECKING:
    from snugfit.run.events import Display
    from snugfit.tools.many_runs.engine import Tell, Watch
    from snugfit.tools.many_runs.outcome import Outcome


def each_shown(quiet: bool) -> Watch:
    """Return what shows each of many runs on a display of its own."""

    @contextmanager
    def watch(_title: str) -> Iterator[Display]:
        from snugfit.display.terminal import TerminalDisplay

        with TerminalDisplay(quiet=quiet, of_many=True) as display:
            yield display

    return watch


def end(
    outcome: Outcome,
    tool: str,
    tell: Tell,
    follows: str | None,
    as_json: bool,
    print_result: Callable[[], None],
    **files: str | None,
) -> int:
    """Show the outcome, and return the exit code.

    Args:
        follows: what to do next.
        files: that programs are told of, besides the page.
    """
    page = str(Path(outcome.folder) / f"{tool}.html")
    tell(f"page {short_path(page)}")
    if follows is not None:
        tell(follows)
    if as_json:
        show({**outcome.as_dict(), **files, "page": page}, as_json)
    else:
        print_result()
    return EXIT_CODES["finished" if outcome.finished else "stopped"]
