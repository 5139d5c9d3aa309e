"""What lasts is said again after a few seconds of silence, by a clock of the test's own."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

from snugfit.cli import main
from snugfit.display import activity as module
from snugfit.display import terminal
from snugfit.display.activity import SILENCE_SECONDS, Activity
from snugfit.display.outlets import LiveScreen, PlainScreen
from snugfit.display.run_state import Standing
from snugfit.display.search_line import search_line
from snugfit.display.terminal import TerminalDisplay
from snugfit.planner.choice.channel import Progress


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def lasting(activity: Activity, clock: Clock, seconds: float) -> None:
    """Let time pass, looked at twice a second as the thread does."""
    end = clock.now + seconds
    while clock.now < end:
        clock.now += 0.5
        activity.look()


@pytest.fixture(autouse=True)
def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Activity, "_watch", lambda *_: None)


def test_no_silence_is_longer_than_five_seconds(clock: Clock, stream: io.StringIO) -> None:
    with Activity("certify", "loading …", stream=stream, clock=clock) as tell:
        times = [clock.now]
        for _ in range(60):
            before = stream.getvalue()
            lasting(tell, clock, 0.5)
            times += [clock.now] if stream.getvalue() != before else []
        times.append(clock.now)
    assert max(b - a for a, b in itertools.pairwise(times)) <= SILENCE_SECONDS + 0.5 < 5
    assert stream.getvalue().splitlines()[:2] == ["certify  loading …", "certify  loading … (4.0s)"]


def test_what_was_said_last_is_what_is_said_again(clock: Clock, stream: io.StringIO) -> None:
    with Activity(stream=stream, clock=clock) as tell:
        lasting(tell, clock, 20)
        assert stream.getvalue() == "", "nothing is known of what is done"
        tell("resume")
        lasting(tell, clock, 3)
        tell.during("saving")
        lasting(tell, clock, 3)
        tell.write("a line")
        lasting(tell, clock, 3)
    lasting(tell, clock, 20)
    assert stream.getvalue().splitlines() == ["resume", "saving … (1.0s)", "a line"]


def test_the_outer_one_is_silent_while_another_one_speaks(clock: Clock, stream: io.StringIO) -> None:
    with Activity("outer", "reading", stream=stream, clock=clock) as outer:
        with Activity("inner", stream=stream, clock=clock) as inner:
            lasting(outer, clock, 20)
            inner.write("inner line")
            lasting(outer, clock, 3)
        assert len(stream.getvalue().splitlines()) == 2
        lasting(outer, clock, 1)  # four seconds after the inner one's line
    assert stream.getvalue().splitlines() == [
        "outer    reading",
        "inner    inner line",
        "outer    reading … (24s)",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_outer_one_is_silent_while_a_bar_is_drawn(clock: Clock, stream: io.StringIO) -> None:
    with Activity("outer", "fold 1 of 2 …", stream=stream, clock=clock) as outer:
        screen = LiveScreen(Terminal())
        screen._activity._clock = clock
        for _ in range(2):  # a bar that was taken away may come again
            screen.wait("reading the data and the model …")
            lasting(outer, clock, 20)
            screen.close()
            lasting(outer, clock, 3)
    assert stream.getvalue().splitlines() == ["outer    fold 1 of 2 …"]


def test_the_outer_one_is_silent_while_a_search_is_shown_on_a_terminal(
    clock: Clock, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    with Activity("outer", "trial 1 of 2 …", stream=stream, clock=clock) as outer, search_line() as show:
        show(Progress(37, 90))
        lasting(outer, clock, 20)
    assert stream.getvalue().splitlines() == ["outer    trial 1 of 2 …"]
    assert not Activity._open


def test_the_line_of_a_run_is_drawn_again_with_the_time_that_something_lasts_and_not_during_updates(
    clock: Clock,
) -> None:
    terminal = Terminal()
    screen = LiveScreen(terminal)
    screen._activity._clock = clock
    screen.wait("reading the data and the model …")
    lasting(screen._activity, clock, 3)
    assert [f"model … ({seconds}.0s)" in terminal.getvalue() for seconds in (1, 2, 3)] == [True] * 3
    with search_line() as show:
        show(Progress(37, 90))
        lasting(screen._activity, clock, 2)
    assert "37 of 90 plans looked at, none fits yet … (2.0s)" in terminal.getvalue()
    lasting(screen._activity, clock, 1)
    assert terminal.getvalue().count("\n") == 0, "a search leaves no line behind"
    assert "reading the data and the model" in terminal.getvalue().rpartition("plans looked at")[2]
    screen.progress(Standing())
    drawn = terminal.getvalue()
    lasting(screen._activity, clock, 10)
    assert terminal.getvalue() == drawn
    screen.close()
    assert not Activity._open


def test_what_lasts_after_the_end_of_a_run_is_said_at_once_and_again(
    clock: Clock, stream: io.StringIO
) -> None:
    screen = PlainScreen(stream)
    screen._activity._clock = clock
    display = TerminalDisplay(screen=screen)
    with display:
        display({"event": "end", "status": "finished", "updates": 1, "epochs": 1.0})
        said = stream.getvalue()
        for tracker in ("a", "b"):
            display({"event": "doing", "text": f"waiting for {tracker}"})
            lasting(screen._activity, clock, 5)
    waits = [f"waiting for {tracker}{lasted}" for tracker in "ab" for lasted in ("", " … (4.0s)")]
    assert stream.getvalue().removeprefix(said).splitlines() == waits
    assert not Activity._open


def test_what_is_most_often_over_at_once_is_said_only_where_it_lasts(
    clock: Clock, stream: io.StringIO
) -> None:
    with Activity("", "reading the recipe …", at_once=False, stream=stream, clock=clock) as tell:
        assert not stream.getvalue()
        lasting(tell, clock, 0.5)
    assert stream.getvalue() == "reading the recipe …\n"


def test_a_search_on_a_terminal_is_drawn_again_while_it_lasts(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with search_line() as show:
        activity = Activity._open[-1]
        activity._clock = clock
        activity.during("planning")
        activity.last_line = clock.now
        lasting(activity, clock, 2)
        show(Progress(37, 90))
        lasting(activity, clock, 1)
    lines = terminal.getvalue().split("\r\x1b[2K")[1:]
    assert lines[:3] == ["planning …", "planning … (1.0s)", "planning … (2.0s)"]
    assert lines[3:5] == [f"37 of 90 plans looked at, none fits yet … ({seconds}.0s)" for seconds in (2, 3)]
    assert lines[5:] == [""]


def test_quiet_says_nothing(clock: Clock, stream: io.StringIO) -> None:
    with Activity("a", "b", quiet=True, stream=stream, clock=clock) as tell:
        tell("c")
        lasting(tell, clock, 20)
    assert stream.getvalue() == ""


def test_a_thread_looks(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.001)
    with Activity("a", "b", stream=stream) as tell:
        looks: list[int] = []
        monkeypatch.setattr(tell, "look", lambda: looks.append(1) or tell.close())
        tell._end.wait(60)
    assert looks == [1]


def test_a_log_names_what_a_run_does_before_its_first_update(clock: Clock, stream: io.StringIO) -> None:
    screen = PlainScreen(stream)
    screen._activity._clock = clock
    screen.wait("reading the data and the model …")
    assert stream.getvalue() == "reading the data and the model …\n"
    screen.during("the first update")
    lasting(screen._activity, clock, 5)
    assert "the first update … (" in stream.getvalue()
    screen.close()
    assert not Activity._open


def test_a_log_of_hours_has_a_line_a_minute_and_says_at_once_what_else_lasts(
    clock: Clock, stream: io.StringIO
) -> None:
    screen = PlainScreen(stream, clock)
    screen._activity.__enter__()
    standing = Standing()
    screen.progress(standing)
    assert screen.interval == 3 and screen._activity.silence == SILENCE_SECONDS
    clock.now += 3600
    screen.progress(standing)
    assert screen.interval == 27  # an hour: a line for each hundredth of it
    said = stream.getvalue()
    lasting(screen._activity, clock, 30)
    assert stream.getvalue() == said
    lasting(screen._activity, clock, 10)
    assert "after update 0 … (36s)" in stream.getvalue()
    screen.during("evaluating")
    said = stream.getvalue()
    lasting(screen._activity, clock, 5)
    assert "evaluating" in stream.getvalue().removeprefix(said)
    clock.now += 36_000
    screen.progress(standing)
    assert screen.interval == 45
    screen.close()


def test_a_log_of_hours_does_not_say_that_an_evaluation_lasts_while_updates_go_on(
    clock: Clock, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=clock))
    screen = PlainScreen(stream, clock)
    screen._activity.__enter__()
    display = TerminalDisplay(screen=screen)
    metrics = {"loss": 1.0, "learning_rate": 0.1, "examples_per_second": 1.0}
    update = {"event": "update", "update": 1, "window": 1, "epoch": 0.1, "metrics": metrics}
    clock.now += 36_000
    display(update)
    assert screen.interval == 45
    clock.now += 1
    display({"event": "doing", "text": "evaluating 100 rows"})
    said = stream.getvalue()
    for _ in range(40):
        lasting(screen._activity, clock, 0.5)
        display(update)
    assert "evaluating" not in stream.getvalue().removeprefix(said)
    screen.close()


def test_a_search_on_a_pipe_says_how_far_it_is(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with search_line() as show:
        activity = Activity._open[-1]
        activity._clock = clock
        activity.last_line = activity._began = clock.now
        lasting(activity, clock, 3)
        show(Progress(37, 90))
        lasting(activity, clock, 1)
    assert capsys.readouterr().err.splitlines() == [
        "plan     planning …",
        "plan     37 of 90 plans looked at, none fits yet … (4.0s)",
    ]


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (["find", "lr", "no.yaml"], "find     loading"),
        (["find", "batch", "no.yaml"], "find     loading"),
        (["certify", "no.yaml"], "certify  loading"),
        (["profile", "no.yaml"], "profile  loading"),
        (["doctor", "no.yaml"], "doctor   loading"),
        (["evaluate", "runs/none", "rows.csv"], "evaluate loading"),
        (["predict", "runs/none", "rows.csv", "-o", "out.csv"], "predict  loading"),
    ],
)
def test_each_command_names_what_it_does_before_it_begins(
    arguments: list[str], first: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(first)
