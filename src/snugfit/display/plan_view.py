"""A plan on the terminal: the number first, then where it comes from, then what else was tried."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from snugfit.display.consoles import plain_console
from snugfit.planner.answers import plan_figures
from snugfit.planner.answers.answer import Alternative, Answer, Rejected
from snugfit.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

_WIDEST = 100
_MOST_ALTERNATIVES = 3
_MOST_REJECTED = 8
_BESIDE_BARS = 32  # columns for a kind, its bytes and their share
_SHORTEST_BAR = 8
_BUDGET_IN_VIEW = 4  # times what is needed; a budget beyond that would leave nothing to see of the rest
_COLOURS = dict(
    zip(
        plan_figures.KINDS,
        ("blue", "yellow", "magenta", "cyan", "green", "bright_yellow", "red", "bright_blue"),
        strict=True,
    )
)


def show_plan(answer: Answer, stream: TextIO | None = None, *, explain: bool = False) -> None:
    """Print a plan.

    Args:
        stream: stdout by default. If it is not a terminal it gets plain text, 80 columns wide.
        explain: also every reason, rule, runner-up and rejected rung, the confidence of each figure, and memory over time.
    """
    from rich.text import Text

    console = plain_console(stream or sys.stdout)
    console.width = min(console.width, _WIDEST)
    view = _View(answer, explain, console.width, console.encoding.startswith("utf"))
    with console.capture() as captured:
        for part in view.parts():
            console.print(part)
        if answer.command:
            # never broken into lines, so that it can be copied
            command = Text(f"\n{'run':<10}").append(plan_figures.printable(answer.command), "bold")
            console.print(command, soft_wrap=True)
    text = captured.get()
    if not console.is_terminal:  # cells are filled up with spaces, which a file has no use for
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    console.file.write(text)
    console.file.flush()


class _View:
    """A plan's parts from top to bottom, for a console of `width` columns."""

    def __init__(self, answer: Answer, explain: bool, width: int, unicode: bool) -> None:
        self.answer, self.explain, self.width = answer, explain, width
        self.full, self.sliver, self.empty, self.end = "█▏·│" if unicode else "#|.|"
        self.peak = "▼" if unicode else "v"
        self.levels = " ▁▂▃▄▅▆▇█" if unicode else " .:-=+*%#"

    def parts(self) -> Iterator[RenderableType]:
        from rich.text import Text

        answer, prediction = self.answer, self.answer.prediction
        yield Text(plan_figures.headline(answer), "bold green" if answer.fits else "bold red")
        about = plan_figures.about_words(answer.about)
        if about:
            yield Text(" · ".join(about), "dim")
        if answer.would_fit:
            yield from self._section("The smallest budget that would do", self._smallest())
        memory, time = plan_figures.basis(prediction, "memory"), plan_figures.basis(prediction, "time")
        yield from self._section(
            f"Memory at the peak ({memory})", self._memory(), self._facts(self._memory_facts())
        )
        if self.explain and prediction.timeline is not None:
            yield from self._section(f"Memory over the update ({memory})", self._over_time())
        yield from self._section(f"Time ({time})", self._facts(self._time()))
        yield from self._section(
            "Choice" if answer.fits else "The smallest plan", self._facts(self._choice())
        )
        if len(answer.frontier) > 1 or (self.explain and answer.bounds):
            yield from self._section("Of each level of fidelity", self._frontier(), self._not_searched())
        if answer.alternatives:
            yield from self._section("Runners-up", self._alternatives())
        if answer.rejected:
            yield from self._section("Rejected", self._rejected())
        if self.explain:
            yield from self._section("One device or more", self._sentences(answer.rules))
            yield from self._section("How each figure was found", self._facts(self._confidence()))

    def _section(self, title: str, *body: RenderableType | None) -> Iterator[RenderableType]:
        from rich.text import Text

        if any(part is not None for part in body):
            yield Text(f"\n{title}", "bold")
            yield from (part for part in body if part is not None)

    def _facts(self, rows: Iterable[tuple[str, str]]) -> Table | None:
        grid = _table()
        grid.add_column(style="dim", no_wrap=True, min_width=8)
        grid.add_column(overflow="fold")
        for name, text in rows:
            if text:
                grid.add_row(name, text)
        return grid if grid.row_count else None

    def _sentences(self, sentences: Sequence[str]) -> Table | None:
        grid = _table()
        grid.add_column(overflow="fold")
        for sentence in sentences:
            grid.add_row(plan_figures.printable(sentence))
        return grid if grid.row_count else None

    def _smallest(self) -> Table | None:
        return self._facts((name, format_bytes(size)) for name, size in self.answer.would_fit.items())

    def _memory(self) -> Table:
        """Return each kind with its bar, which begins where the one above ends, against the budget."""
        from rich.text import Text

        answer, prediction = self.answer, self.answer.prediction
        rows = plan_figures.memory_rows(answer)
        grid = _table()
        grid.add_column(no_wrap=True)
        grid.add_column(justify="right", no_wrap=True)
        grid.add_column(justify="right", no_wrap=True, style="dim")
        grid.add_column(no_wrap=True)
        need = prediction.reserved_bytes
        seen = max(need, answer.budget_bytes) if answer.budget_bytes <= _BUDGET_IN_VIEW * need else need
        room = max(_SHORTEST_BAR, self.width - _BESIDE_BARS)
        start = 0
        for kind, size in rows:
            first, last = round(start / seen * room), round((start + size) / seen * room)
            bar = self.full * (last - first) or self.sliver
            colour = _COLOURS.get(kind, "bright_black")
            grid.add_row(
                kind,
                format_bytes(size),
                plan_figures.share(size / need),
                Text(" " * min(first, room - 1)).append(bar, colour),
            )
            start += size
        grid.add_row(
            "in all", format_bytes(need), "", self._against(answer.budget_bytes, seen, room), style="bold"
        )
        left = answer.budget_bytes - need
        margin = f"{format_bytes(abs(left))} {'free' if left >= 0 else 'too little'}"
        grid.add_row("budget", format_bytes(answer.budget_bytes), "", Text(margin, "dim"))
        return grid

    def _against(self, budget: int, seen: int, room: int) -> Text:
        """Return what is needed as one bar, with what is left of the budget, or the mark where the budget ends."""
        from rich.text import Text

        cells = round(self.answer.prediction.reserved_bytes / seen * room)
        bar = Text(self.full * cells, "green" if self.answer.fits else "red")
        bar.append(self.empty * (room - cells), "dim")
        if budget >= seen:
            return bar
        edge = round(budget / seen * room)
        return bar[:edge].append(self.end, "bold").append_text(bar[edge + 1 :])

    def _memory_facts(self) -> Iterator[tuple[str, str]]:
        prediction = self.answer.prediction
        yield (
            "peak",
            f"{format_bytes(prediction.peak_bytes)} in {plan_figures.peak_place(prediction.peak_at)}",
        )
        yield "host", f"{format_bytes(prediction.host_peak_bytes)} of host memory"

    def _time(self) -> Iterator[tuple[str, str]]:
        prediction = self.answer.prediction
        total = (
            ""
            if prediction.seconds_total is None
            else f", {plan_figures.brief_seconds(prediction.seconds_total)} in all"
        )
        yield "update", plan_figures.brief_seconds(prediction.seconds_per_update) + total
        yield "speed", ", ".join(plan_figures.speed_words(prediction))

    def _choice(self) -> Iterator[tuple[str, str]]:
        answer, choice = self.answer, self.answer.choice
        yield "plan", ", ".join(plan_figures.choice_words(choice))
        yield "added", ", ".join(map(plan_figures.printable, choice.added))
        yield "fidelity", plan_figures.printable(choice.fidelity)
        for place, sentence in enumerate(answer.why):
            yield "" if place else "why", plan_figures.printable(sentence)

    def _confidence(self) -> Iterator[tuple[str, str]]:
        for name, how in self.answer.prediction.confidence.items():
            yield plan_figures.printable(name), plan_figures.printable(how)
        calibrated = self.answer.device.get("calibrated")
        yield "device", "calibrated by measuring it" if calibrated else "from its maker's sheet, not measured"
        yield "planned", f"in {plan_figures.brief_seconds(self.answer.planned_seconds)}"

    def _frontier(self) -> Table:
        grid = _table(head=True)
        grid.add_column("level", no_wrap=True)
        grid.add_column("plan", ratio=1, overflow="fold")
        for name in ("in all", "host", "an update", plan_figures.speed_unit(self.answer)):
            grid.add_column(name, justify="right", no_wrap=True)
        for one in self.answer.frontier:
            misfit = "" if one.fits else " (does not fit)"
            grid.add_row(
                f"{one.level},\n{one.what}",  # below each other: names of plans are long
                plan_figures.printable(one.rung) + misfit,
                *map(format_bytes, (one.reserved_bytes, one.host_bytes)),
                plan_figures.brief_seconds(one.seconds_per_update),
                plan_figures.speed_of(self.answer, one),
            )
        for bound in self.answer.bounds:
            speed = f"≤ {plan_figures.speed_of(self.answer, bound)}"
            seconds = f"≥ {plan_figures.brief_seconds(bound.seconds_per_update)}"
            grid.add_row(
                f"{bound.level},\nat best", "estimate, not searched", "", "", seconds, speed, style="dim"
            )
        return grid

    def _not_searched(self) -> Text | None:
        from rich.text import Text

        return Text(plan_figures.NOT_SEARCHED, "dim") if self.answer.bounds else None

    def _alternatives(self) -> Table:
        shown = self.answer.alternatives if self.explain else self.answer.alternatives[:_MOST_ALTERNATIVES]
        grid = _table(head=True)
        grid.add_column("plan", ratio=1, overflow="fold")
        for name in ("peak", "in all", "an update"):
            grid.add_column(name, justify="right", no_wrap=True)
        for one in shown:
            grid.add_row(
                self._rung(one), *map(format_bytes, (one.peak_bytes, one.reserved_bytes)), _seconds(one)
            )
        return grid

    def _rung(self, one: Alternative) -> Text:
        from rich.text import Text

        text = Text(plan_figures.printable(one.rung))
        return (
            text.append(f"\n{', '.join(plan_figures.choice_words(one.choice))}", "dim")
            if self.explain
            else text
        )

    def _rejected(self) -> Table:
        shown = self.answer.rejected if self.explain else self.answer.rejected[:_MOST_REJECTED]
        grid = _table(head=True)
        grid.add_column("rung", ratio=3, overflow="fold")
        grid.add_column("needs", justify="right", no_wrap=True)
        grid.add_column("an update", justify="right", no_wrap=True)
        grid.add_column("why not", ratio=2, overflow="fold")
        for one in shown:
            size = "" if one.bytes is None else format_bytes(one.bytes)
            grid.add_row(
                plan_figures.printable(one.rung), size, _seconds(one), plan_figures.printable(one.reason)
            )
        rest = len(self.answer.rejected) - len(shown)
        if rest:
            grid.add_row(f"and {rest} more: --explain")
        return grid

    def _over_time(self) -> RenderableType | None:
        """Return one line of columns, each as high as the memory at its highest, with the longer segments below."""
        from rich.text import Text

        timeline = self.answer.prediction.timeline
        if timeline is None:
            return None
        room, total = self.width, timeline.totals()
        most = max(total) or 1
        steps = len(self.levels) - 1
        heights = [total[point] for point in timeline.highest(room)]
        curve = "".join(self.levels[-(-height * steps // most)] for height in heights)
        below = ""
        for band in timeline.bands():
            start, end = round(band.start * room), round(band.end * room)
            name = plan_figures.printable(band.name)
            if len(name) < end - start and start >= len(below):
                below = below.ljust(start) + name
        where = heights.index(max(heights))
        return Text(f"{' ' * where}{self.peak}\n").append(curve, "green").append(f"\n{below}", "dim")


def _table(head: bool = False) -> Table:
    from rich.table import Table

    return Table(box=None, show_header=head, header_style="dim", padding=(0, 2, 0, 0), expand=head)


def _seconds(one: Alternative | Rejected) -> str:
    return "" if one.seconds_per_update is None else plan_figures.brief_seconds(one.seconds_per_update)
