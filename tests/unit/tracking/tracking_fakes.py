"""A tracker in memory that can be dead, slow or unreliable, and runs to send to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from snugfit.tracking.backend import Batch, Metric, RunGone
from snugfit.tracking.spool import Spool


class Store:
    """What trackers keep: by run, metrics in the order they arrived, without exact repetitions, as MLflow does it."""

    def __init__(self) -> None:
        self.metrics: dict[str, list[Metric]] = {}
        self.params: dict[str, dict[str, str]] = {}
        self.tags: dict[str, dict[str, str]] = {}
        self.status: dict[str, str | None] = {}
        self.opened: list[str | None] = []
        self.sent: list[Batch] = []
        self.threads: set[int] = set()
        self.calls = 0
        self.closed = 0

    def steps(self, run_id: str, name: str = "train/loss") -> list[int]:
        return [metric.step for metric in self.metrics[run_id] if metric.name == name]


class FakeBackend:
    """`before(call)` runs ahead of storing, `after(call)` behind it; either may raise or block. Calls count from 1."""

    def __init__(
        self,
        store: Store,
        before: Callable[[int], None] = lambda call: None,
        after: Callable[[int], None] = lambda call: None,
    ) -> None:
        self.store, self.before, self.after = store, before, after

    def __call__(self, uri: str, experiment: str) -> FakeBackend:
        self.store.threads.add(threading.get_ident())
        return self

    def open(self, run_id: str | None, name: str, start_ms: int) -> str:
        self._count()
        self.store.opened.append(run_id)
        if run_id is None:
            run_id = f"run-{len(self.store.metrics) + 1}"
            self.store.metrics[run_id], self.store.params[run_id], self.store.tags[run_id] = [], {}, {}
            self.store.status[run_id] = "running"
        elif run_id not in self.store.metrics:
            raise RunGone(run_id)
        return run_id

    def send(self, run_id: str, batch: Batch) -> None:
        self._count()
        for key, value in batch.params.items():
            if self.store.params[run_id].setdefault(key, value) != value:
                raise ValueError(f"changing param {key} is not allowed")
        known = set(self.store.metrics[run_id])
        self.store.metrics[run_id] += [metric for metric in batch.metrics if metric not in known]
        self.store.tags[run_id].update(batch.tags)
        self.store.status[run_id] = batch.status or self.store.status[run_id]
        self.store.sent.append(batch)
        self.after(self.store.calls)

    def close(self) -> None:
        self.store.closed += 1

    def _count(self) -> None:
        self.store.calls += 1
        self.store.threads.add(threading.get_ident())
        self.before(self.store.calls)


def new_run(folder: Path, **recipe: Any) -> tuple[Path, Spool]:
    """A run's folder with the event that begins it."""
    run_dir = folder / "runs" / "demo" / "1"
    spool = Spool(run_dir / "events.jsonl")
    spool.append(
        "run",
        name="demo",
        id="1",
        recipe={"train": {"epochs": 3}, "plan": {"micro_batch": "auto"}, **recipe},
        plan={"micro_batch": 16},
        versions={"torch": "2.13.0"},
        machine={"cpu_count": 2},
        parameters={"total": 10, "trainable": 10},
        data={"train": 90, "validation": 10, "skipped": {}, "labels": {"a": 50, "b": 50}},
        total_updates=20,
        updates_per_epoch=10,
    )
    return run_dir, spool


def train(spool: Spool, updates: Iterable[int]) -> None:
    """Write an update for each number, with a loss that tells it."""
    for update in updates:
        metrics = {"loss": 1 / update, "learning_rate": 1e-3}
        spool.append("update", update=update, window=update, epoch=update / 10, applied=True, metrics=metrics)


def finish(spool: Spool, updates: int, status: str = "finished", stop_reason: str | None = None) -> None:
    """Write the evaluation and the end of a run."""
    spool.append(
        "evaluation",
        update=updates,
        epoch=updates / 10,
        metrics={"accuracy": 0.75},
        weights="raw",
        best=True,
        seconds=1,
    )
    best = {"update": updates, "metrics": {"accuracy": 0.75}}
    spool.append(
        "end",
        status=status,
        stop_reason=stop_reason,
        resumable=status == "stopped",
        updates=updates,
        epochs=2,
        best=best,
        seconds=9.5,
    )
