"""Several optimizers as one: each has some of the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from snugfit.kit.optimizers.parameter_walk import loss_of


class CombinedOptimizer(Optimizer):
    """Steps each optimizer in turn; its groups and state are theirs, in order, so that it loads and saves as one of torch.

    Args:
        optimizers: no parameter is in two of them.

    Raises:
        ValueError: a parameter is in two of them.

    >>> weight, bias = torch.nn.Linear(2, 1).parameters()
    >>> one = torch.optim.SGD([weight], lr=0.1)
    >>> optimizer = CombinedOptimizer([one, torch.optim.Adam([bias], lr=0.2)])
    >>> [group["lr"] for group in optimizer.param_groups]
    [0.1, 0.2]
    >>> optimizer.param_groups[0]["lr"] = 0.05  # a schedule reaches them
    >>> one.param_groups[0]["lr"]
    0.05
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = tuple(optimizers)
        super().__init__([group for optimizer in self.optimizers for group in optimizer.param_groups], {})
        for optimizer in self.optimizers:
            self.state.update(optimizer.state)
        self._share()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = loss_of(closure)
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {**state, "optimizers": self.optimizers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take groups and a state that are new; `load_state_dict` calls it too."""
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        groups = iter(self.param_groups)
        for optimizer in self.optimizers:
            own = [next(groups) for _ in optimizer.param_groups]
            optimizer.__setstate__({"state": self.state, "param_groups": own})
