"""What of Python stands around an operator: counted, recorded, and in the time of a plan."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from snugfit.planner.cost.records import Op
from snugfit.planner.trace.known_values import KnownValues
from snugfit.planner.trace.python_overhead import interposing
from snugfit.planner.trace.recorder import Recorder
from snugfit.techniques.placement.recompute import recomputing


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def same(tensor: Tensor) -> Tensor:
    return tensor


def test_modes_that_were_entered_and_not_left_are_counted() -> None:
    with interposing() as around:
        with Passing(), Passing():
            assert around.modes == 2
        assert around.modes == 0
    with Passing():
        assert around.modes == 0, "what is entered afterwards is not counted"


def test_each_tensor_that_a_hook_is_given_is_counted_once_and_the_hook_still_works() -> None:
    seen: list[int] = []

    def packed(tensor: Tensor) -> Tensor:
        seen.append(tensor.numel())
        return tensor

    x = torch.ones(3, requires_grad=True)
    with interposing() as around:
        with saved_tensors_hooks(packed, same):
            y = x.exp() * torch.ones(3)  # its result, and the factor that the gradient needs
            assert around.packed_since() == len(seen) == 2
        (y * y).sum()
        assert around.packed_since() == 0, "nobody is asked"
    y.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, x.exp().detach())


def recorded(keep: tuple[str, ...] | None) -> list[Op]:
    """Two layers, forward and backward, with the second one computed again unless `keep` is None."""
    mode = FakeTensorMode()
    recorder = Recorder(KnownValues(mode))
    with mode:
        first, second = torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
        inputs = torch.empty(2, 4)
        with recorder:
            if keep is None:
                second(first(inputs)).sum().backward()
            else:
                with recomputing([second], keep):
                    second(first(inputs)).sum().backward()
    return recorder.trace.ops


@pytest.mark.parametrize(("keep", "modes"), [((), 0), (("attention",), 1)])
def test_a_block_that_is_computed_again_packs_twice_what_it_saves_under_a_mode_where_something_is_kept(
    keep: tuple[str, ...], modes: int
) -> None:
    ops = recorded(keep)
    assert [op.modes for op in ops if op.name == "aten.tanh.default"] == [modes] * 2
    assert [op.modes for op in ops if op.name == "aten.sum.default"] == [0]
    assert sum(op.packed for op in ops) == 2 * 3, "the product's input and weight, and the result of tanh"


def test_without_recompute_nothing_stands_around_an_operator() -> None:
    ops = recorded(None)
    assert ops and {(op.modes, op.packed) for op in ops} == {(0, 0)}
