from __future__ import annotations

import torch
from torch import Tensor

from snugfit.planner.trace.sequence import node_number, sequence_number


def test_a_node_has_the_number_that_was_the_next_one_before_it_was_made() -> None:
    x = torch.ones(2, requires_grad=True)
    before = sequence_number()
    y = x.exp()
    after = sequence_number()
    assert (before, after) == (y.grad_fn._sequence_nr(), before + 1)  # type: ignore[union-attr]


def test_no_node_runs_outside_of_a_backward() -> None:
    assert node_number() is None


def test_within_a_backward_the_number_is_that_of_the_node_that_runs() -> None:
    seen: list[int | None] = []

    class Tells(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
            seen.append(node_number())
            return gradient

    x = torch.ones(2, requires_grad=True)
    x = x * 2
    before = sequence_number()
    y = Tells.apply(x)
    y.sum().backward()
    assert seen == [before]
    assert node_number() is None


def test_what_adds_up_gradients_has_a_number_beyond_all_others() -> None:
    seen: list[int | None] = []
    x = torch.ones(2, requires_grad=True)
    x.register_post_accumulate_grad_hook(lambda parameter: seen.append(node_number()))
    x.exp().sum().backward()
    assert seen[0] is not None and seen[0] >= 1 << 62
