"""A run's events on the terminal.

A display sees every event and changes nothing. It writes to stderr, so that stdout stays free for results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, ClassVar, Self, TextIO

from snugfit.data.report import has_epochs
from snugfit.display.event_lines import (
    end_lines,
    evaluation_cells,
    evaluation_names,
    header_lines,
    next_lines,
)
from snugfit.display.outlets import Screen, make_screen
from snugfit.display.run_state import Standing
from snugfit.planner.answers.plan_figures import compare_line, memory_note
from snugfit.units import counted

_MOST_TIME = 0.02
"""The part of a run's time that drawing may take."""
_SHOWN_SKIPS = 5
_MUCH_LONGER = 2.0
"""Times as long as predicted, from which the reason is looked for outside the plan."""
_BEFORE_HEADER = ("warning", "resume", "time", "fit", "plan")
_ATTENTION = {
    "math": "a softmax of its own, which holds a number for each pair of tokens",
    "flash_attention_2": "the flash-attn package",
    "flash_varlen": "torch's flash kernel, one packed example after the other",
    "flex_attention": "FlexAttention",
    "compiled": "torch.compile",
}
_STYLES = {"finished": "bold green", "stopped": "bold yellow", "failed": "bold red"}

Event = Mapping[str, Any]


class TerminalDisplay:
    """Shows events: `display(event)`. A context; on leaving it the bar goes away and what to do next is said.

    Args:
        quiet: show nothing at all.
        stream: stderr by default. If it is not a terminal it gets plain lines, one every few seconds and at each
            evaluation.
        screen: in place of what fits the stream.
        of_many: whether the run is one of many, whose command says what to do next.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        stream: TextIO | None = None,
        screen: Screen | None = None,
        of_many: bool = False,
    ) -> None:
        self._screen: Screen | None = None if quiet else screen or make_screen(stream)
        self._standing = Standing()
        self._drawn = self._next_draw = 0.0
        self._early: list[Event] = []
        self._columns: list[str] = []
        self._skipped = 0
        self._predicted: Mapping[str, Any] = {}
        self._end: Event | None = None
        self._registered = ""
        self._of_many = of_many

    def __enter__(self) -> Self:
        if self._screen is not None:
            with suppress(OSError):
                self._screen.wait("reading the data and the model …")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __call__(self, event: Event) -> None:
        screen = self._screen
        if screen is None:
            return
        try:
            if event["event"] == "update":
                now = time.monotonic()
                self._standing.take(event, now)
                if now >= self._next_draw:
                    self._draw(screen, now)
            elif not self._standing.run and event["event"] in _BEFORE_HEADER:
                self._early.append(event)  # said under the run's header, which is still to come
            elif event["event"] in self._SAYERS:
                self._SAYERS[event["event"]](self, screen, event)
        except OSError:
            # the terminal went away; the run goes on
            self._screen = None
            with suppress(OSError):
                screen.close()

    def note(self, text: str) -> None:
        """Say something that is no event of the run."""
        self({"event": "note", "text": text})

    def close(self) -> None:
        """Take the bar away and say where the run is and what to do next; a second call does nothing."""
        screen, self._screen = self._screen, None
        if screen is None:
            return
        with suppress(OSError):  # of a terminal that went away
            screen.close()
            for event in self._early:
                self._SAYERS[event["event"]](self, screen, event)
            if self._skipped > _SHOWN_SKIPS:
                more = self._skipped - _SHOWN_SKIPS
                screen.say(
                    f"{counted(more, 'more window')} {'was' if more == 1 else 'were'} skipped", "yellow"
                )
            if self._end is not None:
                for line in next_lines(
                    self._standing.run, self._end, self._registered, of_many=self._of_many
                ):
                    screen.say(line)

    def _draw(self, screen: Screen, now: float) -> None:
        screen.progress(self._standing)
        self._drawn = after = time.monotonic()
        # a slow terminal is drawn on less often
        self._next_draw = after + max(screen.interval, (after - now) / _MOST_TIME)

    def _run(self, screen: Screen, event: Event) -> None:
        self._standing = Standing(run=event)
        for place, line in enumerate(header_lines(event)):
            screen.say(line, "" if place else "bold")
        screen.during("the first update")
        early, self._early = self._early, []
        for waiting in early:
            self(waiting)

    def _resume(self, screen: Screen, event: Event) -> None:
        if event["window"] > 0:  # else it starts again, which a warning says
            screen.say(f"resumed at update {event['update']:,}", "green")

    def _evaluation(self, screen: Screen, event: Event) -> None:
        epochs = has_epochs(self._standing.run.get("data") or {})
        names = evaluation_names(event["metrics"], epochs=epochs)
        if names != self._columns:
            self._columns = names
            screen.row(names, names, style="dim")
        cells, mark = evaluation_cells(event, epochs=epochs)
        screen.row(cells, names, mark, "green" if event["best"] else "")

    def _doing(self, screen: Screen, event: Event) -> None:
        if self._end is None:
            screen.during(event["text"])
            # a screen that is seldom drawn on would say that this lasts while updates go on
            self._next_draw = min(self._next_draw, self._drawn + screen.interval)
        else:
            screen.wait(event["text"])  # its line was taken away

    def _note(self, screen: Screen, event: Event) -> None:
        screen.say(event["text"])

    def _warning(self, screen: Screen, event: Event) -> None:
        screen.say(f"warning: {event['message']}", "yellow")

    def _replan(self, screen: Screen, event: Event) -> None:
        screen.say(event["message"], "yellow")

    def _fit(self, screen: Screen, event: Event) -> None:
        screen.say(f"{'fit':<10}{event['message']}")

    def _time(self, screen: Screen, event: Event) -> None:
        screen.say(f"{'time':<10}{event['message']}")

    def _plan(self, screen: Screen, event: Event) -> None:
        self._predicted = event["predicted"]
        screen.say(f"{'plan':<10}{compare_line(self._predicted, {})}")

    def _measured(self, screen: Screen, event: Event) -> None:
        screen.say(f"{'plan':<10}{compare_line(self._predicted, event)}")
        if note := memory_note(self._predicted, event, self._standing.run):
            screen.say(f"{'':<10}{note}")
        predicted, took = (each.get("seconds_per_update") for each in (self._predicted, event))
        if predicted and took and took > _MUCH_LONGER * predicted:
            screen.say(
                f"{'':<10}other work took the device's time, or its speed was never measured: snugfit plan RECIPE --calibrate"
            )

    def _attention(self, screen: Screen, event: Event) -> None:
        if str(self._standing.run.get("plan", {}).get("device", "cpu")).startswith("cpu"):
            return  # where the kernel is no matter of memory
        kernels = [_ATTENTION.get(each, f"torch's {each} kernel") for each in event["kernels"]]
        screen.say(f"{'attention':<10}computed by {', '.join(kernels)}")

    def _padding(self, screen: Screen, event: Event) -> None:
        screen.say(f"{'padding':<10}{event['message']}")

    def _rows(self, screen: Screen, event: Event) -> None:
        if event["coupled"] is not False:  # else all is as it should be, and the report has it
            screen.say(f"{'rows':<10}{event['message']}")

    def _skip(self, screen: Screen, event: Event) -> None:
        self._skipped += 1
        if self._skipped <= _SHOWN_SKIPS:
            screen.say(f"skipped window {event['window']:,}: {event['reason']}", "yellow")

    def _ended(self, screen: Screen, event: Event) -> None:
        self._end = event
        screen.close()
        for place, line in enumerate(end_lines(self._standing.run, event)):
            screen.say(line, "" if place else _STYLES.get(event["status"], ""))

    def _register(self, screen: Screen, event: Event) -> None:
        alias = event.get("alias")
        self._registered = f"models:/{event['name']}@{alias}" if alias else ""
        screen.say(
            f"{'stored':<10}{event['name']} version {event['version']}{f' as {alias}' if alias else ''}"
        )

    _SAYERS: ClassVar[Mapping[str, Callable[[TerminalDisplay, Screen, Event], None]]] = {
        "run": _run,
        "resume": _resume,
        "evaluation": _evaluation,
        "doing": _doing,
        "note": _note,
        "warning": _warning,
        "replan": _replan,
        "time": _time,
        "fit": _fit,
        "plan": _plan,
        "measured": _measured,
        "attention": _attention,
        "padding": _padding,
        "rows": _rows,
        "skipped": _skip,
        "end": _ended,
        "register": _register,
    }
