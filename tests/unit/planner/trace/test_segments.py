from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from snugfit.planner.cost.records import Op, Phase, Place, Role, Storage, Trace
from snugfit.planner.trace.segments import ROLES, Key, cut


def op(
    name: str, event: int, *, phase: Phase = Phase.FORWARD, block: int = -1, module: str = "", **more: int
) -> Op:
    micro_batch = more.pop("micro_batch", 0)
    place = Place(0, phase, 0, micro_batch, module, block)
    return Op(name, place, "cpu", torch.float32, more.get("flops", 1), 0, 0, event, more.get("workspace", 0))


def costs(op: Op) -> npt.NDArray[np.float64]:
    return np.array([1.0, 0.0, 0.0, 0.0])


def test_a_piece_is_what_a_block_does_in_a_phase_and_what_lies_between_two_blocks_is_the_first_ones() -> None:
    ops = [
        op("embed", 0, module="words"),
        op("a", 0, block=0, module="layers.0"),
        op("b", 0, block=0, module="layers.0"),
        op("between", 0),
        op("c", 0, block=1, module="layers.1"),
        op("loss", 0, phase=Phase.LOSS),
        op("d", 0, phase=Phase.BACKWARD, block=1),
        op("e", 0, phase=Phase.FORWARD, micro_batch=1),
    ]
    pieces = cut(Trace(ops), "cpu", costs)
    assert [(each.key.phase, each.key.micro_batch, each.key.block, each.flops) for each in pieces] == [
        (Phase.FORWARD, 0, -1, 1),
        (Phase.FORWARD, 0, 0, 3),
        (Phase.FORWARD, 0, 1, 1),
        (Phase.LOSS, 0, -1, 1),
        (Phase.BACKWARD, 0, 1, 1),
        (Phase.FORWARD, 1, -1, 1),
    ]
    assert [float(each.costs[0]) for each in pieces] == [1, 3, 1, 1, 1, 1]


def test_a_phase_that_is_entered_again_is_another_part() -> None:
    phases = [Phase.BACKWARD, Phase.OPTIMIZER, Phase.BACKWARD]
    pieces = cut(Trace([op("a", 0, phase=phase) for phase in phases]), "cpu", costs)
    assert [each.key for each in pieces] == [
        Key(0, Phase.BACKWARD, 0, 0, 0, -1),
        Key(0, Phase.OPTIMIZER, 0, 0, 0, -1),
        Key(0, Phase.BACKWARD, 0, 0, 1, -1),
    ]


def test_the_peak_of_each_piece_has_its_bytes_by_role_and_its_operator() -> None:
    storages = [
        Storage(100, "cpu", -1, Role.WEIGHTS),
        Storage(10, "cpu", 0, Role.ACTIVATIONS),
        Storage(7, "cpu", 1, Role.TEMPORARIES),
        Storage(4, "cpu", 2, Role.GRADIENTS),
        Storage(1000, "cuda", 2, Role.GRADIENTS),
    ]
    ops = [
        op("first", 1),  # after the weights
        op("second", 2, module="here"),
        op("third", 4, phase=Phase.BACKWARD),  # the temporary is gone
    ]
    trace = Trace(ops, storages, [1, 2, 3, -3, 4, 5])
    forward, backward = cut(trace, "cpu", costs)
    assert (forward.bytes, forward.operator, forward.module) == (117, "second", "here")
    assert {role: int(size) for role, size in zip(ROLES, forward.peak, strict=True) if size} == {
        Role.WEIGHTS: 100,
        Role.ACTIVATIONS: 10,
        Role.TEMPORARIES: 7,
    }
    assert (backward.bytes, backward.operator) == (114, "third")
    (first, second) = cut(trace, "cuda", costs)
    assert (first.bytes, second.bytes, second.host) == (0, 1000, 114)


def test_a_kernels_workspace_stands_beside_its_own_results() -> None:
    storages = [Storage(10, "cpu", 0), Storage(20, "cpu", 1)]
    ops = [op("first", 0, workspace=25), op("second", 1)]
    (found,) = cut(Trace(ops, storages, [1, -1, 2]), "cpu", costs)
    assert (found.bytes, found.operator) == (35, "first")
    assert found.peak[ROLES.index(Role.WORKSPACE)] == 25
    ops[0].workspace = 5  # 15 then, less than the 20 later
    (found,) = cut(Trace(ops, storages, [1, -1, 2]), "cpu", costs)
    assert (found.bytes, found.operator) == (20, "second")


def test_pieces_of_the_same_operators_have_the_same_names() -> None:
    ops = [
        op("a", 0, block=0),
        op("b", 0, block=0),
        op("a", 0, block=1),
        op("b", 0, block=1),
        op("c", 0, block=2),
    ]
    first, second, third = cut(Trace(ops), "cpu", costs)
    assert first.names == second.names != third.names


def test_a_run_of_nothing_has_no_pieces() -> None:
    assert cut(Trace(), "cpu", costs) == []
