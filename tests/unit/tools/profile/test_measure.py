"""A profile says where the time of an update goes, and leaves all that it looks at as it was."""

from __future__ import annotations

import html
import json
import random
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import snugfit as sf
from snugfit.errors import SettingError
from snugfit.results.tool_results import results
from snugfit.tools.profile.labels import PHASE
from snugfit.tools.profile.measure import profile_setup
from snugfit.tools.profile.result import Detail, Profile
from snugfit.tools.setup import module_setup

INPUTS, HIDDEN, CLASSES, ROWS = 12, 20, 3, 8


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, CLASSES))


def rows(count: int = 40) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(count, INPUTS, generator=generator), torch.arange(count) % CLASSES)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """A profile with all that can be asked for."""
    return sf.profile(
        mlp(),
        rows(),
        validation=rows(20),
        techniques=[sf.ClipNorm(max_norm=1.0)],
        global_batch=ROWS,
        micro_batch=4,
        epochs=4,
        device="cpu",
        steps=3,
        memory=True,
        tensorboard=True,
        output=tmp_path_factory.mktemp("runs"),
    )


def test_the_phases_add_up_to_the_update(found: Profile) -> None:
    assert list(found.phases) == [
        "data",
        "techniques",
        "pass",
        "forward",
        "loss",
        "backward",
        "unscale",
        "adjust",
        "optimizer",
        "between",
    ]
    assert sum(found.phases.values()) == pytest.approx(found.seconds_per_update)
    assert sum(found.limits.values()) == pytest.approx(found.seconds_per_update)
    assert found.examples_per_second == pytest.approx(ROWS / found.seconds_per_update)


def test_evaluation_and_save_are_timed_beside_the_updates(found: Profile) -> None:
    # five windows make an epoch, after which a run evaluates and saves
    assert {name: each.every for name, each in found.occasional.items()} == {"evaluation": 5, "save": 5}
    assert all(each.seconds > 0 for each in found.occasional.values())


def test_the_flops_are_those_of_a_hand_count(found: Profile) -> None:
    first, second = 2 * ROWS * INPUTS * HIDDEN, 2 * ROWS * HIDDEN * CLASSES
    # forward; gradients of both weights; gradient of the second layer's inputs, and none of the data's
    assert found.flops_per_update == (first + second) + (first + second) + second


def test_the_trace_has_each_phase_as_often_as_it_was_entered(found: Profile) -> None:
    trace = json.loads((found.folder / "trace.json").read_text())
    labels = Counter(
        event["name"].removeprefix(PHASE)
        for event in trace["traceEvents"]
        if event.get("cat") == "user_annotation" and event["name"].startswith(PHASE)
    )
    # three updates of two micro-batches, three batches of held-out rows (8, 8, 4) in forwards of four, and a save
    assert labels["forward"] == 3 * 2 + 5 and labels["backward"] == 3 * 2
    assert labels["optimizer"] == labels["adjust"] == labels["unscale"] == labels["pass"] == 3
    assert labels["data"] == 3 * 2 + 3, "fetched and moved, and each batch of the evaluation fetched"
    assert labels["evaluation"] == labels["save"] == 1
    names = {event["name"] for event in trace["traceEvents"]}
    assert {"module::0", "module::2", "aten::addmm"} <= names


def test_operators_are_counted_and_placed(found: Profile) -> None:
    operators = {each.name: each for each in found.operators}
    addmm = operators["aten::addmm"]
    assert addmm.calls == 2 * 2 and addmm.phase == "forward" and addmm.module in ("0", "2")
    assert operators["aten::gelu_backward"].module == "1"
    assert addmm.work.flops == 2 * ROWS * (INPUTS * HIDDEN + HIDDEN * CLASSES)
    within = sum(each.seconds for each in operators.values())
    assert 0 < within < found.seconds_per_update


def test_what_was_found_is_kept_with_its_files(found: Profile) -> None:
    ((folder, told),) = results(found.folder.parents[3], "Sequential")
    assert folder == found.folder and told["tool"] == "profile"
    assert {path.name for path in folder.iterdir()} == {
        "found.json",
        "key_averages.txt",
        "profile.html",
        "tensorboard",
        "trace.json",
    }
    (for_tensorboard,) = (folder / "tensorboard").iterdir()
    assert for_tensorboard.name.endswith(".pt.trace.json")
    assert told["phases"] == dict(found.phases) and told["limit"] == found.limit
    assert len(told["culprits"]) == 5
    assert set(told["memory"]) == {"measured", "predicted"}
    assert all({"try", "gain", "by"} == set(each) for each in told["advice"])
    assert "aten::addmm" in (folder / "key_averages.txt").read_text()


class Drawing(nn.Linear):
    """A model that draws numbers where it is copied."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        torch.rand(1)


def test_nothing_of_what_is_profiled_is_changed(tmp_path: Path) -> None:
    model = Drawing(INPUTS, CLASSES)
    optimizer = torch.optim.AdamW(model.parameters())
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    torch.manual_seed(7), np.random.seed(7), random.seed(7)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index]
    model.eval()
    sf.profile(
        model,
        rows(),
        optimizer=optimizer,
        global_batch=ROWS,
        updates=1,
        device="cpu",
        steps=1,
        output=tmp_path,
    )
    assert all(torch.equal(now, then) for now, then in zip(model.parameters(), weights, strict=True))
    assert not model.training and not optimizer.state
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1]) and random.getstate() == states[2]


class Slow(Dataset[Any]):
    """Examples that take a while each."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.02)
        return torch.randn(INPUTS), index % CLASSES


def test_a_loader_that_starves_the_step_is_said_to_limit_it(tmp_path: Path) -> None:
    found = sf.profile(mlp(), Slow(), global_batch=ROWS, device="cpu", steps=1, output=tmp_path)
    assert found.limit == "data" and found.verdict.startswith("Data limits")
    assert found.culprits[0].name == "data"
    assert any(each.change.startswith("plan.num_workers=") for each in found.advice)


@pytest.mark.slow
def test_what_workers_load_is_waited_for_in_data(tmp_path: Path) -> None:
    setup = module_setup(mlp(), Slow(), global_batch=ROWS, device="cpu")
    setup = replace(setup, plan=replace(setup.plan, num_workers=2))
    found = profile_setup(setup, tmp_path, updates=2)
    assert found.phases["data"] > 0
    # warm-up, timed and seen updates, each with a window of its own
    assert found.updates == 2 and (tmp_path / "trace.json").exists()


def test_fewer_than_one_update_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"^steps: must be at least 1, found 0"):
        sf.profile(mlp(), rows(), steps=0, device="cpu", output=tmp_path)


class Doubling(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.tanh() * 2


def doubled(folder: Path, **asked: Any) -> Profile:
    model = nn.Sequential(nn.Linear(INPUTS, CLASSES), Doubling())
    return sf.profile(model, rows(), global_batch=ROWS, device="cpu", steps=2, output=folder, **asked)


@pytest.mark.slow
def test_shapes_and_stacks_are_told_where_they_are_asked_for(tmp_path: Path) -> None:
    found = doubled(tmp_path, shapes=True, stacks=True)
    (tanh,) = (each for each in found.operators if each.name == "aten::tanh")
    line = Doubling.forward.__code__.co_firstlineno  # of a function torch tells the first line
    assert tanh.shapes == f"{ROWS}×{CLASSES}" and tanh.line.endswith(
        f"{Path(__file__).name}({line}): forward"
    )
    assert "Input Shapes" in found.table and "Source Location" in found.table
    told = found.as_dict()["operators"]
    (shapes, *_), (place, *_) = ([each[name] for each in told if name in each] for name in ("shapes", "line"))
    page = (found.folder / "profile.html").read_text()
    assert shapes in page and place in html.unescape(page)
    trace = json.loads((found.folder / "trace.json").read_text())["traceEvents"]
    (dispatched, *_) = [event for event in trace if event["name"] == "aten::tanh"]
    assert dispatched["args"]["Input Dims"] == [[ROWS, CLASSES]]
    assert any(event.get("cat") == "python_function" for event in trace)


def test_without_being_asked_for_there_are_neither_shapes_nor_stacks(found: Profile) -> None:
    assert not any(each.shapes or each.line for each in found.operators)
    assert "Input Shapes" not in found.table and "Source Location" not in found.table
    assert found.sorted_by == "host"


@pytest.mark.parametrize(
    ("sort", "device", "by"),
    [(None, "cpu", "host"), (None, "cuda", "device"), ("host", "cuda", "host"), ("device", "cuda", "device")],
)
def test_operators_are_sorted_by_the_devices_time_where_it_has_one(
    sort: str | None, device: str, by: str
) -> None:
    assert Detail(sort=sort).sorted_by(device) == by


@pytest.mark.parametrize(
    ("sort", "says"), [("device", "a CPU has no time beside the host"), ("calls", "got 'calls'")]
)
def test_an_order_that_is_not_there_is_refused_before_a_folder_is_made(
    sort: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=says):
        doubled(tmp_path / "runs", sort=sort)
    assert not (tmp_path / "runs").exists()
