"""The interface of a tracker, and what it is sent: the seam between the spool's follower and MLflow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Metric:
    """A finite number at one step."""

    name: str
    value: float
    time_ms: int
    step: int


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

    `untagged` are tags that no longer hold, `start_ms` is the first one's time, `status` the last one: running, finished …
    """

    metrics: list[Metric] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    inputs: list[DataInput] = field(default_factory=list)
    untagged: set[str] = field(default_factory=set)
    status: str | None = None
    status_time_ms: int = 0
    start_ms: int = 0

    def __bool__(self) -> bool:
        return bool(self.metrics or self.params or self.tags or self.inputs or self.untagged or self.status)


class RunGone(Exception):
    """The tracker no longer has the run that is to be continued."""


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
        """Give back what was taken; called once, also after failures."""
