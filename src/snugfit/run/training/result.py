"""The results of a run: its events, its best model, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import nn


class Emit(Protocol):
    """The receivers of a run's events: the spool and the screen."""

    def __call__(self, kind: str, /, **fields: Any) -> None: ...


class SaveBest(Protocol):
    """Writes a model and what describes it into a folder; `trained` is the one it was exported from."""

    def __call__(
        self, folder: Path, model: nn.Module, description: Mapping[str, Any], /, *, trained: nn.Module
    ) -> None: ...


@dataclass
class RunResult:
    """The end of a run.

    `seconds` are those of all processes that have trained it, `examples_per_second` the speed of the last.
    `status` is finished, stopped (resumable) or failed; `went_back` are the windows, counted from 1, because
    of which it went back to a checkpoint; `advice` is what the evaluations say about its length: `verdict`
    (longer, shorter, stop or unknown), `epochs` and `reason`.
    """

    run_dir: str
    status: str
    stop_reason: str | None
    resumable: bool
    updates: int
    epochs: float
    best: dict[str, Any] | None
    last: dict[str, Any]
    seconds: float
    examples_per_second: float
    peak_memory_bytes: int
    tracker_run_id: str | None = None
    went_back: list[int] = field(default_factory=list)
    advice: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
