"""The interface of a tracker, and what it is sent: the seam between the spool's follower and the clients of trackers."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from snugfit.system.json_text import parse_json
from snugfit.system.redaction import redact

SYSTEM = "system"
"""Begins, with a slash, the names of the machine's figures, which some trackers measure by themselves."""


@dataclass(frozen=True)
class Metric:
    """A finite number at one step."""

    name: str
    value: float
    time_ms: int
    step: int


@dataclass(frozen=True)
class Picture:
    """A picture at one step; its file is in the run's folder, by the path from there."""

    name: str
    path: str
    time_ms: int
    step: int


@dataclass(frozen=True)
class Histogram:
    """The number of values in each of equal parts between two ends, at one step."""

    name: str
    low: float
    high: float
    counts: tuple[int, ...]
    time_ms: int
    step: int

    @property
    def edges(self) -> list[float]:
        """The ends of the parts, from the least to the greatest."""
        width = (self.high - self.low) / len(self.counts)
        return [self.low + width * place for place in range(len(self.counts) + 1)]


@dataclass(frozen=True)
class DataInput:
    """A source of rows that a run reads: the name of a file, a function or a class, the digest of its content, and `train` or `validation`."""

    name: str
    digest: str
    context: str
    is_code: bool = False
    rows: int | None = None
    columns: tuple[str, ...] = ()


@dataclass
class Batch:
    """Events in the tracker's terms.

    `files` are names in the run's folder of what describes the run as a whole, such as its report; a tracker that has no place for these, or
    for pictures or histograms, leaves them out.

    `untagged` are tags that no longer hold, `start_ms` is the first one's time, `status` the last one: running, finished …
    """

    metrics: list[Metric] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    inputs: list[DataInput] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    histograms: list[Histogram] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    untagged: set[str] = field(default_factory=set)
    status: str | None = None
    status_time_ms: int = 0
    start_ms: int = 0

    def tags_after(self, before: Mapping[str, str]) -> dict[str, str]:
        """Return the tags that hold once the batch is stored, given those that held before."""
        return {key: value for key, value in before.items() if key not in self.untagged} | self.tags

    def __bool__(self) -> bool:
        return any(
            (
                *(self.metrics, self.params, self.tags, self.inputs, self.untagged, self.status),
                *(self.pictures, self.histograms, self.files),
            )
        )


Point = TypeVar("Point", bound=Metric | Picture | Histogram)


def by_step(points: Iterable[Point]) -> list[tuple[int, list[Point]]]:
    """Return the points of each step together, in the order of the steps, for trackers that log a step at once."""
    rows: dict[int, list[Point]] = {}
    for point in points:
        rows.setdefault(point.step, []).append(point)
    return sorted(rows.items(), key=lambda row: row[0])


def shown_points(batch: Batch, folder: Path) -> list[Metric | Picture | Histogram]:
    """Return what a tracker that measures the machine itself shows of a batch, but for pictures that have left the run's folder since."""
    metrics = [each for each in batch.metrics if not each.name.startswith(f"{SYSTEM}/")]
    pictures = [each for each in batch.pictures if (folder / each.path).is_file()]
    return [*metrics, *pictures, *batch.histograms]


def logged_value(point: Metric | Picture | Histogram, folder: Path, client: Any) -> Any:
    """Return a point as a client logs it that has the interface of W&B's.

    Args:
        folder: of the run.
        client: its module, which has `Image` and `Histogram`.
    """
    if isinstance(point, Metric):
        return point.value
    if isinstance(point, Histogram):
        return client.Histogram(np_histogram=(list(point.counts), point.edges))
    return client.Image(str(folder / point.path))


class RunGone(Exception):
    """The tracker no longer has the run that is to be continued."""


FAILURES = (Exception, SystemExit)
"""Whatever a client may raise; one that calls sys.exit is to end neither a run nor the thread that tries again."""


class Backend(Protocol):
    """A tracker's client. All methods may raise anything; they are only called from the follower's thread."""

    def open(self, run_id: str | None, name: str, start_ms: int) -> str:
        """Create a run that started at this time, or continue the given one, and return its id.

        Raises:
            RunGone: the run to continue does not exist any more.
        """

    def send(self, run_id: str, batch: Batch) -> None:
        """Store a batch; when it returns, the batch is stored. Sending the same batch twice must do no harm."""

    def close(self) -> None:
        """Give back what was taken; called once, also after failures. An error says what of all batches is not stored after all."""


def sources_of(batch: Batch) -> dict[str, str]:
    """Return the sources of a run's rows as settings, for trackers that know no data sets."""
    return {f"data.{each.context}": f"{each.name} ({each.digest[:12]})" for each in batch.inputs}


def table(values: dict[str, str]) -> str:
    """Return names and values as a table in Markdown."""
    rows = [f"| {key} | {value.replace('|', '&#124;')} |" for key, value in sorted(values.items())]
    return "\n".join(["| | |", "|---|---|", *(row.replace("\n", " ") for row in rows)])


def typed(text: str) -> bool | int | float | str:
    """Return a setting as the number or the truth value that its text is, so that a tracker can sort by it.

    >>> typed("0.001"), typed("true"), typed("adamw"), typed("[1, 2]"), typed("NaN")
    (0.001, True, 'adamw', '[1, 2]', 'NaN')
    """
    try:
        value = parse_json(text)
    except ValueError:
        return text
    return value if isinstance(value, (bool, int, float)) and value == value else text


def project_name(experiment: str) -> str:
    """Return the name of an experiment as one that a project may have, which is part of an address.

    >>> project_name("/Users/me@firm.com/news: small")
    'Users-me@firm.com-news- small'
    """
    return re.sub(r"[/\\#?%:]+", "-", experiment).strip("-") or "snugfit"


def reason(error: BaseException) -> str:
    """Return an exception in one short line without passwords; of a failed connection only what failed."""
    root = error
    while inner := root.__cause__ or root.__context__:
        root = inner
    # of a database SQLAlchemy tells the query too; sqlite3 is not in every Python
    if (
        isinstance(root, (ConnectionError, TimeoutError, socket.gaierror))
        or type(root).__module__ == "sqlite3"
    ):
        error = root
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error.code!r})"
    text = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    text = redact(text)  # before it is cut: the beginning of a secret has no shape
    return text if len(text) <= 300 else f"{text[:299]}…"
