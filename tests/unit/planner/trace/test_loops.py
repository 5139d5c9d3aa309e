from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from snugfit.kit.phases import alike
from snugfit.planner.devices.device import Machine
from snugfit.planner.devices.hardware import uncalibrated
from snugfit.planner.pretend_gpu import pretended_gpu
from snugfit.planner.trace.known_values import KnownValues
from snugfit.planner.trace.loops import counts, needed
from snugfit.planner.trace.recorder import Recorder
from tests.unit.planner.trace import loops
from tests.unit.planner.trace.test_recorder import MODE

GPU = ("chunks of 5", "chunks recomputed", "pieces", "masters", "masters on the host", "tiles in bf16")
"""Each of which takes a second."""

KINDS = [
    "A",
    "AB",
    "AAAAB",
    "ABABABAB",
    "AAAB" * 5,
    "AAB" * 4 + "AAC",
    "ABC" * 3,
    "ABBBBA",
    "BAAAAAAA",
    "AABBAABBA",
]


def neighbours(kinds: Sequence[str]) -> set[tuple[str, str]]:
    return set(itertools.pairwise(kinds))


@pytest.mark.parametrize("kinds", KINDS)
def test_each_kind_of_part_is_run_after_each_kind_that_it_comes_after_and_after_no_other(kinds: str) -> None:
    run = needed(kinds)
    assert run[0] == 0 and run[-1] == len(kinds) - 1
    assert run == sorted(set(run))
    assert neighbours([kinds[place] for place in run]) == neighbours(kinds)


@pytest.mark.parametrize("kinds", KINDS)
def test_the_parts_that_are_run_count_for_all_of_their_kind(kinds: str) -> None:
    run = needed(kinds)
    found: Counter[str] = Counter()
    for place, times in zip(run, counts(kinds, run), strict=True):
        found[kinds[place]] += times
    assert found == Counter(kinds)


def test_of_a_hundred_parts_that_are_alike_three_are_run() -> None:
    assert needed("A" * 100) == [0, 1, 99]
    assert counts("A" * 100, [0, 1, 99]) == [1, 98, 1]


def test_a_loop_outside_of_a_dry_run_has_all_of_its_parts() -> None:
    recorder = Recorder(KnownValues(MODE))
    with MODE, recorder:
        assert list(alike(range(9), lambda part: "A")) == [*range(9)]
    with MODE, Recorder(KnownValues(MODE), shortens=True):
        assert list(alike(range(9), lambda part: "A")) == [0, 1, 8]
    assert list(alike(range(9), lambda part: "A")) == [*range(9)]


def test_an_operator_counts_for_those_of_the_parts_that_are_left_out_within_loops_too() -> None:
    recorder = Recorder(KnownValues(MODE), shortens=True)
    with MODE, recorder:
        x = torch.zeros(2)
        for _ in alike(range(10), lambda part: "outer"):
            x.add_(1)
            for _ in alike(range(5), lambda part: "inner"):
                x.mul_(2)
    times: Counter[str] = Counter()
    for op in recorder.trace.ops:
        times[op.name] += op.times
    assert times == {"aten.zeros.default": 1, "aten.add_.Tensor": 10, "aten.mul_.Tensor": 50}
    assert len(recorder.trace.ops) == 1 + 3 * (1 + 3)


def test_operators_of_parts_that_are_left_out_are_listed_in_the_order_of_the_loop() -> None:
    def traced(shortens: bool) -> tuple[list[tuple[str, int, int]], int]:
        recorder = Recorder(KnownValues(MODE), shortens=shortens)
        with MODE, recorder:
            for rows in alike([2, 2, 3] * 4, kind=int, listed=True):
                torch.zeros(rows).add_(rows)
        ops = recorder.trace.ops
        return [(op.name, op.written, op.times) for op in ops], len(recorder.trace.events)

    (some, fewer), (whole, events) = traced(True), traced(False)
    assert some == whole
    assert fewer < events


def test_parts_that_ask_for_numbers_are_all_run() -> None:
    asked: list[int] = []
    with MODE, Recorder(KnownValues(MODE), shortens=True):
        lengths = torch.tensor([3, 1, 2, 5, 4])
        for place in alike(range(5), lambda part: "A"):
            asked.append(int(lengths[place].item()))
    assert asked == [3, 1, 2, 5, 4]


class Kept:
    """What parts of a loop leave in a list of states."""

    def __init__(self) -> None:
        self.states: dict[int, Any] = {}

    def of(self, part: int) -> Any:
        return self.states[part]

    def leave(self, part: int, remains: Any) -> None:
        self.states[part] = remains


def stepped(shortens: bool, part: Any, count: int = 6) -> tuple[Recorder, Kept, list[int]]:
    """A loop over parts, each of which leaves a state; which of them were run."""
    recorder, kept, run = Recorder(KnownValues(MODE), shortens=shortens), Kept(), []
    with MODE, recorder:
        for number in alike(range(count), lambda number: "A", remains=kept):
            run.append(number)
            part(number, kept.states)
    return recorder, kept, run


def leaves_a_state(number: int, states: dict[int, Any]) -> None:
    beside = torch.zeros(5).add(1)
    states[number] = {"count": torch.ones(()), "moment": [beside[:2] * 2]}


def test_two_parts_that_leave_a_state_are_run_and_the_others_leave_one_like_the_second() -> None:
    (some, kept, run), (whole, _, all_of_them) = stepped(True, leaves_a_state), stepped(False, leaves_a_state)
    assert run == [0, 1] and all_of_them == [*range(6)]
    moments = [state["moment"][0] for state in kept.states.values()]
    assert len({id(each.untyped_storage()) for each in moments}) == 6
    assert {each.shape for each in moments} == {(2,)}
    assert some.trace.events == whole.trace.events
    assert some.trace.ops == whole.trace.ops
    sizes = [[each.bytes for each in one.trace.storages] for one in (some, whole)]
    assert sizes[0] == sizes[1]


def test_a_state_that_is_left_has_the_numbers_of_the_one_it_is_like_and_is_let_go_of_by_itself() -> None:
    recorder, kept, _ = stepped(True, leaves_a_state)
    with MODE, recorder:
        assert kept.states[5]["count"].item() == 1
    events = len(recorder.trace.events)
    del kept.states[5]
    assert len(recorder.trace.events) == events + 2


def test_parts_are_all_run_that_leave_more_than_is_told() -> None:
    beside: list[torch.Tensor] = []

    def part(number: int, states: dict[int, Any]) -> None:
        leaves_a_state(number, states)
        beside.append(torch.zeros(3))

    assert stepped(True, part)[2] == [*range(6)]


def test_parts_are_all_run_that_let_go_of_what_others_have_made() -> None:
    def part(number: int, states: dict[int, Any]) -> None:
        leaves_a_state(number, states)
        states.pop(number - 1, None)

    assert stepped(True, part)[2] == [*range(6)]


def test_parts_are_all_run_whose_state_is_a_view_of_more() -> None:
    def part(number: int, states: dict[int, Any]) -> None:
        states[number] = torch.zeros(9)[:3]

    assert stepped(True, part)[2] == [*range(6)]


def test_what_the_first_part_has_made_for_all_is_not_copied() -> None:
    def part(number: int, states: dict[int, Any]) -> None:
        states[number] = {"map": states[0]["map"] if number else torch.zeros(7), "moment": torch.zeros(3)}

    _, kept, run = stepped(True, part)
    assert run == [0, 1]
    assert len({id(state["map"]) for state in kept.states.values()}) == 1
    assert len({id(state["moment"]) for state in kept.states.values()}) == 6


def agree(some: dict[str, Any], whole: dict[str, Any]) -> None:
    assert some["operators"] < whole["operators"]
    assert some["threads"] == whole["threads"] == 1  # so what is freed, and when, is the same each time
    for name in ("bytes", "pieces", "reserved"):
        assert some[name] == whole[name], name
    assert some["numbers"] == pytest.approx(whole["numbers"], rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", loops.CASES)
def test_some_parts_of_each_loop_tell_what_all_of_them_take_on_a_cpu(name: str) -> None:
    device = uncalibrated("cpu")
    agree(*loops.both(name, Machine(device, device, "cpu")))


@pytest.mark.slow
@pytest.mark.parametrize("name", loops.SHARDED)
def test_some_parts_of_each_loop_tell_what_all_of_them_take_of_one_of_several_devices(name: str) -> None:
    device = uncalibrated("cpu")
    agree(*loops.both(name, Machine(device, device, "cpu"), sharded=True))


@pytest.mark.slow
@pytest.mark.skipif(pretended_gpu.why_not() is not None, reason=str(pretended_gpu.why_not()))
def test_some_parts_of_each_loop_tell_what_all_of_them_take_on_a_gpu() -> None:
    script = Path(loops.__file__)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(script.parents[4]), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), *GPU],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for some, whole in json.loads(done.stdout.splitlines()[-1]).values():
        agree(some, whole)
