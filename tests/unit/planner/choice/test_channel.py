"""The channel between a search and who waits for it: progress, and an interrupt that ends every search."""

from __future__ import annotations

import io
import math
import signal
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from snugfit.core.job import Plan
from snugfit.display.search_line import search_line
from snugfit.planner.choice import channel
from snugfit.planner.choice.candidate import Budget
from snugfit.planner.choice.channel import EARLY, Progress
from snugfit.planner.plan import Request, make_plan
from tests.unit.planner.test_sharing import machine, subject


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Progress]]:
    """What is sent over a channel that is connected for the test."""
    found: list[Progress] = []
    monkeypatch.setattr(channel, "_here", channel._Channel())
    before = signal.getsignal(signal.SIGINT)
    channel.connect(found.append)
    yield found
    signal.signal(signal.SIGINT, before)


def search(deadline: float = math.inf) -> SimpleNamespace:
    return SimpleNamespace(deadline=deadline)


def test_progress_is_sent_where_somebody_waits(sent: list[Progress]) -> None:
    channel.tell(3, 90, 1.5, 2**30)
    assert sent == [Progress(3, 90, 1.5, 2**30)]


def test_nothing_is_sent_where_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_here", channel._Channel())
    channel.tell(3, 90)
    channel.heed(search())
    assert channel._here == channel._Channel()


def test_an_interrupt_ends_the_searches_that_run_and_those_that_come(sent: list[Progress]) -> None:
    running, over, later = search(), search(deadline=1.0), search()
    channel.heed(running)
    channel.heed(over)
    assert not channel.interrupted()

    signal.raise_signal(signal.SIGINT)
    channel.heed(later)

    assert channel.interrupted()
    assert running.deadline == later.deadline <= time.monotonic()
    assert over.deadline == 1.0


def test_an_answer_that_was_interrupted_says_so(sent: list[Progress]) -> None:
    def why() -> tuple[str, ...]:
        request = Request(Plan(micro_batch=2), Budget(2**40), search=False)
        return make_plan(subject(), machine(2**40), request).why

    assert EARLY not in why()
    signal.raise_signal(signal.SIGINT)
    assert EARLY in why()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_line_that_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with search_line() as show:
        show(Progress(1, 4120))
        show(Progress(37, 4120, 12.1, 23_192_823_398))
    lines = terminal.getvalue().split("\r\x1b[2K")
    best = "37 of 4,120 plans looked at, best 12.1 s in 21.6 GiB"
    drawn = ["planning", "1 of 4,120 plans looked at, none fits yet", best]
    assert lines == ["", *(f"{line} …" for line in drawn), ""]


@pytest.mark.parametrize(
    ("stream", "quiet", "line"), [(io.StringIO, False, "plan     planning …\n"), (Terminal, True, "")]
)
def test_a_log_gets_one_line_and_who_asks_for_quiet_nothing(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO], quiet: bool, line: str
) -> None:
    written = stream()
    monkeypatch.setattr(sys, "stderr", written)
    with search_line(quiet) as show:
        show(Progress(1, 90))
    assert written.getvalue() == line
