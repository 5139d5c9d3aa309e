"""The walk over parameter groups that optimizers of our own share."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from snugfit.core.parameters import ParameterGroup


def loss_of(closure: Any) -> Any:
    """Return what a closure of `Optimizer.step` gives, which makes the gradients; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class OwnOptimizer(torch.optim.Optimizer):
    """A torch optimizer that changes the parameters of one group at a time; those without a gradient are passed over.

    `by_element`: what becomes of a number goes by its own gradient and state, and by none of its neighbours'. Bit for bit where only
    operations that IEEE 754 rounds exactly are used; a power is rounded otherwise at the end of a tensor than within it.
    """

    by_element: ClassVar[bool] = False

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = loss_of(closure)
        for group in self.param_groups:
            self.update(group, [parameter for parameter in group["params"] if parameter.grad is not None])
        return loss

    def update(self, group: ParameterGroup, parameters: list[nn.Parameter]) -> None:
        """Change these parameters of `group`, each of which has a gradient, in place."""
        raise NotImplementedError
