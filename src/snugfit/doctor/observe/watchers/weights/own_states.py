"""States that `state_dict()` returned: they hold the module's own tensors, and change as it trains."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor, nn

MOST_STATES = 64


class _Taken(NamedTuple):
    """The first tensor of a state, the updates that were made before it was taken, the tensor's version then, and the line that took it."""

    tensor: weakref.ref[Tensor]
    updates: int
    version: int
    at: str


class OwnStates:
    """The last states that the script took, with what tells whether they have changed since.

    Known by their tensors: a copy of the dictionary holds the same ones.
    """

    def __init__(self) -> None:
        self._taken: dict[int, _Taken] = {}
        self._asked: dict[int, tuple[int, int]] = {}

    def taken(self, state: Any, updates: int, at: str) -> None:
        """Remember a state, how many updates were made before it, and which version of its first tensor it holds."""
        first = _first(state)
        if first is None or first.is_inference():
            return
        while len(self._taken) >= MOST_STATES:
            self._taken.pop(next(iter(self._taken)))
        self._taken.pop(id(first), None)
        self._taken[id(first)] = _Taken(weakref.ref(first), updates, first._version, at)
        self._asked[first.data_ptr()] = updates, first._version

    def owned(self, module: nn.Module, state: Any, updates: int) -> str:
        """Return whether the state that is about to be loaded holds the module's own parameters, and what became of them.

        "trained": updates were made since it was taken, so what it was taken for is gone. "unchanged": loading it does nothing. A state
        whose tensors the script has written to itself, in place, is neither.
        """
        first = _first(state)
        taken = None if first is None else self._known(first)
        # other tensors over the memory of the last state that was asked for
        asked = None if first is None else self._asked.get(first.data_ptr())
        if first is None or (taken is None and asked is None and not isinstance(first, nn.Parameter)):
            return ""  # of parameters themselves nobody needs to have asked for a state
        held = [(state.get(name), each) for name, each in module.named_parameters()]
        same = [isinstance(mine, Tensor) and mine.data_ptr() == each.data_ptr() for mine, each in held]
        if not same or not all(same) or any(not each.numel() for _, each in held):
            return ""
        before, version = asked or (0, -1)
        if taken is not None:
            before, version = taken.updates, taken.version
        if updates > before:
            return "trained"
        return "unchanged" if first._version == version else ""

    def trained_since(self, states: Iterable[Any], updates: int) -> str:
        """Return the line that took one of these states while the module was trained, which has been trained on since; "" without.

        One that was taken before the training stands for the model on purpose.
        """
        for state in states:
            first = _first(state)
            taken = None if first is None else self._known(first)
            if first is None or taken is None or not 0 < taken.updates < updates:
                continue
            if first._version != taken.version:
                return taken.at
        return ""

    def count_of_living(self, state: Any) -> int:
        """Return how many states that the script took of one module, each after other steps, it still has: all of them are the last one."""
        first = _first(state)
        if first is None or not first.numel():
            return 0
        living = [(each.tensor(), each.version) for each in self._taken.values()]
        return len({
            version for tensor, version in living
            if tensor is not None and tensor.data_ptr() == first.data_ptr() and tensor.shape == first.shape
        })  # fmt: skip

    def _known(self, first: Tensor) -> _Taken | None:
        """Return what is known of a tensor, whose number may have been given to another."""
        taken = self._taken.get(id(first))
        return taken if taken is not None and taken.tensor() is first else None


def _first(state: Any) -> Tensor | None:
    values = state.values() if hasattr(state, "values") and callable(state.values) else ()
    return next((each for each in values if isinstance(each, Tensor)), None)
