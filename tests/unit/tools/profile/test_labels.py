"""Phases are timed for themselves, and all that a run does is in one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import snugfit as sf
from snugfit.kit.phases import phase, watched
from snugfit.tools.profile.labels import Clock, both, modules_in_trace


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the time finds it a second later."""
    times = iter(range(1000))
    monkeypatch.setattr("snugfit.tools.profile.labels.time.perf_counter", lambda: float(next(times)))


@pytest.mark.usefixtures("ticking")
def test_an_inner_phase_is_no_part_of_the_outer_one() -> None:
    clock = Clock(torch.device("cpu"))
    with watched(clock), clock.running(), phase("loss"), phase("forward"):
        pass
    # marks at 0 (running), 1 (loss), 2 (forward), 3, 4, 5
    assert clock.seconds() == {"between": 2.0, "loss": 2.0, "forward": 1.0}


@pytest.mark.usefixtures("ticking")
def test_all_of_an_evaluation_counts_for_it() -> None:
    clock = Clock(torch.device("cpu"))
    with watched(clock), phase("evaluation"), phase("data"), phase("forward"):
        pass
    assert clock.seconds() == {"evaluation": 5.0}


@pytest.mark.usefixtures("ticking")
def test_time_in_no_phase_is_not_counted_while_the_clock_does_not_run() -> None:
    clock = Clock(torch.device("cpu"))
    with watched(clock):
        for _ in range(2):
            with phase("save"):
                pass
    assert clock.seconds() == {"save": 2.0}


def test_each_part_of_a_run_is_in_its_phase(tmp_path: Path) -> None:
    entered: list[str] = []

    @contextmanager
    def note(name: str) -> Iterator[None]:
        entered.append(name)
        yield

    data = TensorDataset(torch.randn(12, 4), torch.arange(12) % 3)
    with watched(note):
        sf.train(
            nn.Linear(4, 3),
            data,
            validation=data,
            optimizer=sf.SGD(learning_rate=0.1),
            techniques=[sf.ClipNorm(max_norm=1.0), sf.EMA()],
            global_batch=6,
            micro_batch=2,
            epochs=1,
            output=tmp_path,
            track=False,
        )
    counts = {name: entered.count(name) for name in dict.fromkeys(entered)}
    # two small windows are loaded at once, in training and in the evaluation; three forwards that compare rows, two updates of three micro-batches, an evaluation of two batches in forwards of two rows, one checkpoint and the best model
    assert counts == {
        "data": 1 + 1,
        "techniques": 2 * 2,
        "pass": 2,
        "loss": 6,
        "forward": 6 + 6 + 3,
        "backward": 6,
        "unscale": 2,
        "adjust": 2,
        "optimizer": 2,
        "evaluation": 1,
        "save": 2,
    }


def test_windows_from_workers_are_waited_for_in_data() -> None:
    from snugfit.data.loader import Loader
    from snugfit.data.order import Order

    entered: list[str] = []

    @contextmanager
    def note(name: str) -> Iterator[None]:
        entered.append(name)
        yield
        entered.append(f"/{name}")

    loader = Loader(TensorDataset(torch.randn(4, 2)), Order(4, 2), num_workers=1)
    with watched(note):
        for _ in loader.windows(0, 2):
            entered.append("window")
    assert entered == ["data", "/data", "window"] * 2


def test_several_labels_are_entered_in_order_and_left_in_reverse() -> None:
    order: list[str] = []

    def noting(sign: str):  # type: ignore[no-untyped-def]
        @contextmanager
        def label(name: str) -> Iterator[None]:
            order.append(f"{sign}{name}")
            yield
            order.append(f"/{sign}{name}")

        return label

    with watched(both(noting("a"), noting("b"))), phase("loss"):
        pass
    assert order == ["aloss", "bloss", "/bloss", "/aloss"]


def test_a_forward_that_fails_leaves_no_label_open_and_no_hook_behind() -> None:
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("no")

    model = nn.Sequential(nn.Linear(2, 2), Failing())
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler, modules_in_trace(model):
        with pytest.raises(ValueError, match="no"):
            model(torch.zeros(1, 2))
        with torch.profiler.record_function("after"):
            pass
    events = {event.name: event for event in profiler.events()}
    assert {"module::", "module::0", "module::1", "after"} <= set(events)
    assert events["after"].cpu_parent is None
    assert not nn.modules.module._global_forward_hooks
