"""What a run tells of its updates, and when: on a GPU no update waits to be told. Only a GPU can show the time that saves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from snugfit.core import scalar_reads
from snugfit.core.progress import Progress
from snugfit.core.scalar_reads import read_scalars_later
from snugfit.run.training import update_events as module
from snugfit.run.training.update_events import UpdateEvents
from snugfit.step.step import StepResult

MEMORY = 3 * 2**20


class Run:
    """A run on a device that is not here: the numbers of an update are read when `reads` grows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
        self.events: list[tuple[str, Any]] = []
        self.reads: list[int] = []
        self.broken = False
        step: Any = SimpleNamespace(
            device=torch.device(device),
            progress=Progress(),
            kernels=None,
            padding=SimpleNamespace(message=""),
            inputs=SimpleNamespace(copied=False),
        )
        self.step = step
        self.telling = UpdateEvents(lambda kind, **fields: self.events.append((kind, fields)), step)
        monkeypatch.setattr(module, "read_scalars_later", self.later)
        monkeypatch.setattr(module, "memory_bytes", lambda device: MEMORY)

    def later(self, tensors: list[torch.Tensor], assume: list[float]) -> Any:
        update = self.step.progress.updates

        def arrived() -> list[float]:
            if self.broken:
                raise RuntimeError("CUDA error")
            self.reads.append(update)
            return [float(tensor) for tensor in tensors]

        return arrived

    def update(self, seconds: float = 0.01, **metrics: float) -> None:
        self.step.progress.updates += 1
        measured = {name: torch.tensor(value) for name, value in metrics.items()}
        result = StepResult(1.0, 1.0, True, measured, 0.1, scale=2.0)
        self.telling.computed(result, seconds)
        self.telling.update(result, 0.5, 10.0)

    def told(self) -> list[Any]:
        return [fields.get("update", kind) for kind, fields in self.events]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch, "cuda")


def test_metrics_of_an_update_are_read_when_the_next_one_has_been_made(run: Run) -> None:
    run.update(norm=0.25)
    assert (run.events, run.reads) == ([], [])
    run.update(norm=0.5)
    assert (run.told(), run.reads) == ([1], [1])
    (_, fields), *_ = run.events
    names = ["loss", "learning_rate", "norm", "loss_scale", "examples_per_second", "memory_bytes"]
    assert list(fields["metrics"]) == names
    assert fields["metrics"]["norm"] == 0.25


def test_any_other_event_comes_behind_the_update_before_it(run: Run) -> None:
    run.update(norm=0.25)
    run.telling.emit("evaluation", update=1)
    assert [kind for kind, _ in run.events] == ["update", "evaluation"]
    run.telling.release()
    assert len(run.events) == 2, "an update is told once"


def test_an_update_that_takes_long_and_one_without_metrics_are_told_at_once(run: Run) -> None:
    run.update(seconds=1.0, norm=0.25)
    assert run.told() == [1]
    run.update()
    assert run.told() == [1, 2]


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_where_nothing_is_copied_beside_the_computation_an_update_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    run = Run(monkeypatch, device)
    run.update(norm=0.25)
    assert run.told() == [1]


def ends(run: Run, error: BaseException) -> None:
    with run.telling:
        run.update(norm=0.5)
        raise error


def test_the_last_update_is_told_at_the_end_and_under_an_error(run: Run) -> None:
    with run.telling:
        run.update(norm=0.25)
    with pytest.raises(KeyboardInterrupt):
        ends(run, KeyboardInterrupt())
    assert run.told() == [1, 2]


def test_a_device_that_failed_does_not_hide_its_error_behind_one_of_reading(run: Run) -> None:
    run.broken = True
    with pytest.raises(RuntimeError, match="the first one"):
        ends(run, RuntimeError("the first one"))


def test_scalars_of_a_device_are_copied_behind_what_it_computes_and_waited_for_when_they_are_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    host = SimpleNamespace(tolist=lambda: [1.5])
    stacked = SimpleNamespace(to=lambda device, **options: asked.append((device, options)) or host)
    event = SimpleNamespace(synchronize=lambda: asked.append("waited"))
    stream = SimpleNamespace(record_event=lambda: asked.append("recorded") or event)
    monkeypatch.setattr(scalar_reads, "COPIES_BESIDE", ("meta",))
    monkeypatch.setattr(scalar_reads, "_stacked", lambda tensors, device: stacked)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: stream)
    arrived = read_scalars_later([torch.ones((), device="meta")], assume=[])
    assert asked == [("cpu", {"non_blocking": True}), "recorded"]
    assert arrived() == [1.5]
    assert asked[2:] == ["waited"]


def test_the_machine_is_told_of_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    run, now = Run(monkeypatch, "cpu"), [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    run.telling._used = 0.0
    for seconds in (5.0, 11.0, 12.0, 22.0):
        now[0] = seconds
        run.update()
    told = [(fields["update"], sorted(fields["metrics"])) for kind, fields in run.events if kind == "system"]
    names = ["cpu_percent", "free_bytes", "memory_bytes"]
    assert told == [(2, names), (4, names)]
    figures = next(fields["metrics"] for kind, fields in run.events if kind == "system")
    assert figures["memory_bytes"] == MEMORY and figures["cpu_percent"] >= 0
