"""Operators are found in a profiler's events, each in its phase and module."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from snugfit.kit.phases import phase, watched
from snugfit.planner.cost.records import Op, Phase, Place, Trace
from snugfit.planner.devices.hardware import find_device
from snugfit.tools.profile.labels import in_trace, modules_in_trace
from snugfit.tools.profile.operators import Operator, Work, operators_of, work_of


def event(name: str, start: float, end: float, own: float = 0.0, **more: Any) -> Any:
    """One event as torch gives them, in microseconds."""
    defaults = {
        "device_type": "DeviceType.CPU",
        "is_user_annotation": "::" in name and name.startswith(("snugfit::", "module::")),
        "sequence_nr": -1,
        "scope": 0,
        "cpu_parent": None,
        "self_cpu_time_total": own,
        "self_device_time_total": 0.0,
        "input_shapes": [],
        "stack": [],
    }
    return SimpleNamespace(
        name=name, time_range=SimpleNamespace(start=start, end=end), **{**defaults, **more}
    )


def found(events: list[Any], **settings: Any) -> dict[str, Operator]:
    given = {"updates": 1, "work": {}, "scale": {}, "on_cpu": True, **settings}
    return {each.name: each for each in operators_of(events, **given)}


def test_an_operator_belongs_to_the_innermost_phase_and_module_around_it() -> None:
    events = [
        event("snugfit::loss", 0, 100),
        event("snugfit::forward", 10, 60),
        event("module::head", 20, 50),
        event("aten::mm", 25, 40, own=15),
        event("aten::nll_loss", 70, 90, own=20),
    ]
    operators = found(events)
    assert (operators["aten::mm"].phase, operators["aten::mm"].module) == ("forward", "head")
    assert (operators["aten::nll_loss"].phase, operators["aten::nll_loss"].module) == ("loss", "")


def test_a_backward_operator_belongs_to_the_module_that_made_its_node() -> None:
    node = event("MmBackward0", 120, 150, sequence_nr=7, scope=1)
    events = [
        event("snugfit::forward", 0, 60),
        event("module::first", 0, 20),
        event("aten::view", 5, 6, own=1, sequence_nr=7),  # makes no node: the next one has its number
        event("module::second", 30, 50),
        event("aten::mm", 35, 45, own=10, sequence_nr=7),
        event("snugfit::backward", 100, 200),
        node,
        event("aten::t", 125, 130, own=5, cpu_parent=node),
    ]
    assert (found(events)["aten::t"].module, found(events)["aten::t"].phase) == ("second", "backward")


def test_seconds_are_those_of_an_update_as_it_is_without_the_profiler() -> None:
    events = [
        event("snugfit::forward", 0, 100),
        event("aten::mm", 0, 30, own=30.0),
        event("aten::mm", 40, 50, own=10.0),
    ]
    mm = found(events, updates=2, scale={"forward": 0.5})["aten::mm"]
    assert mm.seconds == pytest.approx(40e-6 / 2 * 0.5) and mm.calls == 1.0


def test_an_operator_that_another_one_calls_does_the_work_of_that() -> None:
    caller = event("aten::new_zeros", 0, 90, own=1)
    events = [
        event("snugfit::backward", 0, 100),
        caller,
        event("aten::fill_", 10, 80, own=70, cpu_parent=caller),
        event("aten::fill_", 95, 96, own=1),
    ]
    zeros = Work(1, 0, 4_000, 0.0, 1e-4)
    assert found(events, work={"new_zeros": zeros, "": Work()})["aten::fill_"].work == zeros


def test_what_is_no_operator_of_an_update_is_left_out() -> None:
    events = [
        event("snugfit::evaluation", 0, 50),
        event("snugfit::forward", 0, 20),
        event("aten::mm", 5, 10, own=5),
        event("snugfit::backward", 60, 100),
        event("autograd::engine::evaluate_function: MmBackward0", 60, 90, own=9),
        event("Memcpy", 60, 90, device_type="DeviceType.CUDA"),
        event("aten::add", 200, 210, own=5),  # outside of all phases
    ]
    assert not found(events)


def test_of_an_accelerator_the_kernels_count() -> None:
    events = [event("snugfit::forward", 0, 9), event("aten::mm", 1, 2, own=1, self_device_time_total=500.0)]
    assert found(events, on_cpu=False)["aten::mm"].seconds == pytest.approx(500e-6)


def test_the_events_of_this_torch_lead_from_a_backward_to_its_module() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    activities = [torch.profiler.ProfilerActivity.CPU]
    with (
        torch.profiler.profile(activities=activities) as profiler,
        watched(in_trace),
        modules_in_trace(model),
    ):
        with phase("loss"):
            with phase("forward"):
                outputs = model(torch.randn(4, 8))
            loss = outputs.logsumexp(-1).sum()
        with phase("backward"):
            loss.backward()
    operators = found(list(profiler.events()))
    assert (operators["aten::tanh"].phase, operators["aten::tanh"].module) == ("forward", "1")
    assert (operators["aten::tanh_backward"].phase, operators["aten::tanh_backward"].module) == (
        "backward",
        "1",
    )
    assert operators["aten::logsumexp"].module == ""
    assert operators["aten::mm"].phase == "backward" and operators["aten::mm"].module in ("0", "2")


def test_work_adds_up_by_operator_at_the_rates_of_the_device() -> None:
    device = find_device("t4")

    def op(name: str, flops: int, moved: int, where: Phase = Phase.FORWARD) -> Op:
        return Op(name, Place(0, where, 0, 0, "", -1), "cpu", torch.float32, flops, moved, 0, 0)

    trace = Trace(
        [
            op("aten.mm.default", 1000, 8),
            op("aten.mm.default", 500, 4),
            op("aten.gelu.default", 0, 16),
            op("aten.mm.default", 7, 7, Phase.EVALUATION),
        ]
    )
    work = work_of(trace, device)
    rate = device.bandwidth * device.reach
    assert work["mm"] == Work(
        2, 1500, 12, pytest.approx(1500 / device.flops["float32"]), pytest.approx(12 / rate)
    )
    assert (work[""].flops, work[""].calls, work[""].moved_bytes) == (1500, 3, 28)


def test_shapes_and_lines_are_those_that_take_most_of_an_operators_time() -> None:
    here = [
        "<built-in function linear>",
        "torch/nn/modules/linear.py(130): forward",
        "my_net.py(12): forward",
    ]
    there = ["snugfit/step/step.py(9): run", "torch/nn/functional.py(3): f"]
    events = [
        event("snugfit::forward", 0, 100),
        event("aten::mm", 10, 20, own=10, input_shapes=[[2, 3], [3, 4], []], stack=here),
        event("aten::mm", 20, 60, own=40, input_shapes=[[8, 3], [3, 4], []], stack=here),
        event("aten::mm", 60, 70, own=10, input_shapes=[[2, 3], [3, 4], []], stack=there),
        event("aten::add", 80, 90, own=10, stack=there),
        event("aten::mul", 90, 95, own=5),
    ]
    operators = found(events)
    assert (operators["aten::mm"].shapes, operators["aten::mm"].line) == (
        "8×3, 3×4",
        "my_net.py(12): forward",
    )
    assert (operators["aten::add"].shapes, operators["aten::add"].line) == ("", there[0])
    assert (operators["aten::mul"].shapes, operators["aten::mul"].line) == ("", "")


def test_the_hosts_time_is_told_beside_the_devices() -> None:
    events = [
        event("snugfit::forward", 0, 100),
        event("aten::mm", 10, 20, own=10, self_device_time_total=70.0),
        event("aten::add", 20, 60, own=40, self_device_time_total=1.0),
    ]
    operators = operators_of(events, updates=2, work={}, scale={}, on_cpu=False)
    assert [(each.name, each.seconds, each.host_seconds) for each in operators] == [
        ("aten::mm", pytest.approx(35e-6), pytest.approx(5e-6)),
        ("aten::add", pytest.approx(0.5e-6), pytest.approx(20e-6)),
    ]
