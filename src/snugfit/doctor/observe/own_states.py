"""States that `state_dict()` returned: they hold the module's own tensors, and change as it trains."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor, nn

MOST_STATES = 64


class OwnStates:
    """The last states that the script took, with what tells whether they have changed since."""

    def __init__(self) -> None:
        self._taken: dict[int, tuple[weakref.ref[Any], int, int]] = {}

    def taken(self, state: Any, updates: int) -> None:
        """Remember a state, how many updates were made before it, and which version of its first tensor it holds."""
        first = next((each for each in state.values() if isinstance(each, Tensor)), None)
        if first is None or first.is_inference():
            return
        while len(self._taken) >= MOST_STATES:
            self._taken.pop(next(iter(self._taken)))
        self._taken.pop(id(state), None)
        self._taken[id(state)] = (weakref.ref(state), updates, first._version)

    def owned(self, module: nn.Module, state: Any, updates: int) -> str:
        """Return whether the state that is about to be loaded holds the module's own parameters, and what became of them.

        "trained": updates were made since it was taken, so what it was taken for is gone. "unchanged": loading it does nothing. A state
        whose tensors the script has written to itself, in place, is neither.
        """
        taken = self._taken.get(id(state))
        if taken is None or id(taken[0]()) != id(state):  # its number may have been given to another
            return ""
        _, before, version = taken
        held = [(state.get(name), each) for name, each in module.named_parameters()]
        same = [isinstance(mine, Tensor) and mine.data_ptr() == each.data_ptr() for mine, each in held]
        if not same or not all(same) or any(not each.numel() for _, each in held):
            return ""
        if updates > before:
            return "trained"
        first = next(each for each in state.values() if isinstance(each, Tensor))
        return "unchanged" if first._version == version else ""
