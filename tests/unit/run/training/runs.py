"""Tiny runs: a model, its data, and a `Training` around them, with every event kept in a list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.job import Job, Plan
from snugfit.core.technique import Technique
from snugfit.data.loader import Loader
from snugfit.data.order import Order
from snugfit.data.stream import StreamedExamples
from snugfit.models.bundle import save_bundle
from snugfit.results.run_folder import RunFolder
from snugfit.run.events import Events, Silent
from snugfit.run.training.assemble import assemble
from snugfit.run.training.best import SaveBest
from snugfit.run.training.loop import Training
from snugfit.run.training.result import RunResult
from snugfit.step.build import Material
from snugfit.strategies.base import Strategy
from snugfit.techniques.learning.sgd import SGD
from snugfit.tracking.spool import read_events

INPUTS, CLASSES = 2, 3
TIMED = ("time", "seconds", "examples_per_second", "memory_bytes", "path")


class Never:
    """Never asks to stop; what `Training.run` wants of a `StopRequest`."""

    reason: str | None = None
    asked = False


@dataclass
class StopAt(Never):
    """Asks to stop once that many windows are done."""

    training: Training
    windows: int

    @property
    def reason(self) -> str | None:  # type: ignore[override]
        return "enough" if self.training.step.progress.windows >= self.windows else None

    @property
    def asked(self) -> bool:  # type: ignore[override]
        return self.reason is not None


@dataclass
class SeenLoader:
    """A loader that keeps the ids of the examples it gave."""

    inner: Loader
    seen: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def order(self) -> Order:
        return self.inner.order

    @property
    def stream(self) -> StreamedExamples | None:
        return self.inner.stream

    def stream_position(self, examples: int) -> Any:
        return self.inner.stream_position(examples)

    def origins(self, ids: Sequence[int]) -> list[str]:
        return self.inner.origins(ids)

    def worst_window(self) -> tuple[Batch, bool]:
        return self.inner.worst_window()

    def windows(self, *args: Any, **kwargs: Any) -> Iterator[Batch]:
        for window in self.inner.windows(*args, **kwargs):
            self.seen.append(window.ids)
            yield window


def points(count: int, seed: int = 0, poison: Sequence[int] = ()) -> list[tuple[Tensor, Tensor]]:
    """Points in the plane with the sector they lie in; NaN at the examples to poison."""
    source = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, INPUTS, generator=source)
    labels = (inputs.sum(dim=1) > 0).long() + (inputs[:, 0] > inputs[:, 1]).long()
    for index in poison:
        inputs[index] = float("nan")
    return list(zip(inputs, labels, strict=True))


def small_model(seed: int = 1, dropout: float = 0.1) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, CLASSES))


def make_training(
    folder: Path,
    *,
    model: nn.Module | None = None,
    train: Any = None,
    validation: Any = None,
    techniques: Sequence[Technique] = (SGD(learning_rate=0.1),),
    metrics: Mapping[str, Any] | None = None,
    loss: Any = "cross_entropy",
    collate: Callable[[list[Any]], Any] | None = None,
    plan: Plan | None = None,
    identity: Mapping[str, Any] | None = None,
    display: Callable[[dict[str, Any]], None] | None = None,
    strategy: Strategy | None = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    accept_changes: Sequence[str] = (),
    **job: Any,
) -> Training:
    """A run in `folder`, new or to be restored; 12 points in windows of 4 unless other data is given."""
    model = small_model() if model is None else model
    folder.mkdir(parents=True, exist_ok=True)
    run_folder = RunFolder(folder)
    settings = {"global_batch": 4, "epochs": 2.0, "best": "loss", **job}
    training = assemble(
        Job.of(**settings),
        plan or Plan(),
        Material(model, points(12) if train is None else train, validation, loss, collate, forward),
        None,
        techniques,
        metrics or {},
        folder=run_folder,
        emit=Silent() if strategy is not None and strategy.rank > 0 else Events(run_folder, display),
        save_best=save_at(run_folder.best),
        save_at=save_at,
        identity=identity,
        accept_changes=accept_changes,
        strategy=strategy,
    )
    training.loader = SeenLoader(training.loader)  # type: ignore[assignment]
    return training


def save_at(place: Path) -> SaveBest:
    def save(delivered: nn.Module, description: Mapping[str, Any], /, *, trained: nn.Module) -> None:
        save_bundle(place, delivered, {"task": "python", **description}, adapters_of=trained)

    return save


def finish(training: Training) -> RunResult:
    return training.run(Never())  # type: ignore[arg-type]


def stop_at(training: Training, windows: int) -> RunResult:
    result = training.run(StopAt(training, windows))  # type: ignore[arg-type]
    assert (result.status, result.resumable, result.stop_reason) == ("stopped", True, "enough")
    assert training.step.progress.windows == windows
    return result


def resumed(training: Training) -> Training:
    training.restore()
    return training


def seen(training: Training) -> list[tuple[int, ...]]:
    """The ids of the examples of each window that this process trained on."""
    assert isinstance(training.loader, SeenLoader)
    return training.loader.seen


def events(training: Training, *kinds: str, raw: bool = False) -> list[dict[str, Any]]:
    """What the run has told, by kind, as a reader of its folder sees it."""
    return [event for event in read_events(training.folder.events, raw=raw) if event["event"] in kinds]


def told(training: Training) -> list[str]:
    """Updates, evaluations and skipped windows without their times, comparable though there be NaN."""
    return [repr(_untimed(event)) for event in events(training, "update", "evaluation", "skipped")]


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _untimed(entry) for key, entry in value.items() if key not in TIMED}
    return value
