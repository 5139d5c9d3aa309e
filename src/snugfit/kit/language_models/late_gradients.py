"""Gradients that are made last in a backward, when what earlier layers keep for theirs is gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Make = Callable[[], Sequence[Tensor]]


class LateGradients(NamedTuple):
    """Gradients of some parameters, to be made when a backward comes to where this was made.

    Of the nodes that are ready autograd runs the one that was made last. So what is made before a forward comes behind all of its layers: a
    gradient as large as a head of many words does not stand in memory beside what all blocks have kept.

    >>> weight, seen = torch.nn.Parameter(torch.ones(3)), []
    >>> late = LateGradients.of([weight])
    >>> layer = torch.nn.Linear(2, 1)
    >>> hooks = [each.register_post_accumulate_grad_hook(lambda each: seen.append(each.numel())) for each in (weight, layer.weight)]
    >>> loss = layer(torch.ones(1, 2)).sum() + late.mark
    >>> late.made.append(lambda: [torch.ones(3)])
    >>> loss.backward()
    >>> seen
    [2, 3]
    """

    mark: Tensor
    """A scalar 0, on which what the parameters make has to depend."""
    made: list[Make]

    @classmethod
    def of(cls, parameters: Sequence[Tensor]) -> LateGradients:
        """Return those of parameters that need a gradient; before the forward."""
        made: list[Make] = []
        return cls(_Mark.apply(made, *parameters), made)  # type: ignore[no-untyped-call]

    def follow(self, make: Make) -> Tensor:
        """Have `make` called when all else has its gradient, and return the gradient of the mark; in the backward of what depends on it."""
        self.made[:] = [make]
        return self.mark.new_zeros(())


class _Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, made: list[Make], *parameters: Tensor) -> Tensor:
        ctx.made = made
        return parameters[0].new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        make: Make = ctx.made.pop()
        return None, *make()
