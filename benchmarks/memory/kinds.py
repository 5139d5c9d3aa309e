"""Whose bytes are alive at the peak of an update."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from snugfit.system.allocation_counter import AllocatedBytes


class KindsAtPeak(AllocatedBytes):
    """Counts allocations as its base does, and at each new peak asks what belongs to weights, gradients and states."""

    def __init__(self) -> None:
        super().__init__()
        self.at_peak = dict.fromkeys(("weights", "gradients", "optimizer", "rest"), 0)
        self._model: nn.Module | None = None
        self._optimizer: Any = None
        self._asked = self.highest = 0

    def watch(self, model: nn.Module, optimizer: Any) -> None:
        """Count from now on this model's bytes, and this optimizer's, or those of whichever steps first."""
        self._model, self._optimizer, self.highest = model, optimizer, self.now
        if optimizer is None:
            watching = self

            def catch(optimizer: Any, args: Any, kwargs: Any) -> None:
                watching._optimizer = optimizer

            register_optimizer_step_pre_hook(catch)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.highest = max(self.highest, self.now)
        if self._model is not None and self.now == self.highest > 1.005 * self._asked:
            self._asked = self.now
            self._ask()
        return result

    def _ask(self) -> None:
        assert self._model is not None
        parameters = list(self._model.parameters())
        frozen = [value for each in parameters for value in _inside(getattr(each, "quant_state", None))]
        states = [] if self._optimizer is None else list(_inside(dict(self._optimizer.state)))
        kinds = {
            "weights": _bytes([*parameters, *self._model.buffers(), *frozen]),
            "gradients": _bytes(each.grad for each in parameters if each.grad is not None),
            "optimizer": _bytes(states),
        }
        self.at_peak = {**kinds, "rest": self.now - sum(kinds.values())}


def _inside(tree: Any) -> Iterable[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _inside(value)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from _inside(value)
    elif hasattr(tree, "absmax"):  # bitsandbytes' constants of a quantised weight
        yield from _inside(vars(tree))


def _bytes(tensors: Iterable[Tensor]) -> int:
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())
