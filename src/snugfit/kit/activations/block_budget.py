"""The choice of blocks that keep their activations within a number of bytes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import nn

from snugfit.core.batch import Batch
from snugfit.core.random import preserved_randomness
from snugfit.core.tree import leaves
from snugfit.errors import SettingError
from snugfit.kit.activations.call_tensors import taken_apart
from snugfit.kit.activations.saved_tensors import SavedBytes, counting_saved
from snugfit.kit.buffers import Buffers
from snugfit.kit.streaming.slot import slots
from snugfit.units import format_bytes

Forward = Callable[..., Any]


class Budget:
    """The blocks that are kept: as many as fit into so many bytes, besides the inputs of all.

    Args:
        limit: bytes of what the blocks keep for backward; weights do not count.
        setting: what refusals name.

    Each new shape has a first pass, in which every block is computed again, and its forward once more to be measured.
    """

    def __init__(self, limit: int, setting: str) -> None:
        self._limit, self._setting = limit, setting
        self._names_to_keep: dict[Hashable, frozenset[str]] = {}
        self.begin()

    def begin(self) -> None:
        """Begin the first pass of a shape."""
        self._inputs = SavedBytes()
        self._own: dict[str, int] = {}

    def names_to_keep(self, shape: Hashable) -> frozenset[str] | None:
        """Return names of the blocks to keep; None at the first pass of a shape."""
        return self._names_to_keep.get(shape)

    def measured(self, name: str, block: nn.Module, forward: Forward, again: Forward) -> Forward:
        """`again`, and before it `forward` once, to see what would be kept."""

        def run(*args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled():
                inputs, _ = taken_apart((args, tuple(kwargs.values())))
                for tensor in inputs:
                    self._inputs.add(tensor)
                given = [*block.parameters(), *block.buffers(), *slots(), *inputs]
                device = given[-1].device
                with (
                    preserved_randomness(device),
                    Buffers(block).restore_on_exit(),
                    counting_saved(given, keep=False) as saved,
                ):
                    forward(*args, **kwargs)
                self._own[name] = self._own.get(name, 0) + saved.total()
            return again(*args, **kwargs)

        return run

    def choose(self, shape: Hashable, rows: int) -> None:
        """Keep, after the first pass, the smallest, and of equal ones the last, whose backward comes first.

        Raises:
            SettingError: the blocks' inputs alone are more.
        """
        total = self._inputs.total()
        if total > self._limit:
            raise SettingError(
                self._setting,
                f"the inputs of the blocks alone take {format_bytes(total)} for a micro-batch of {rows} rows, and the "
                f"budget is {format_bytes(self._limit)}",
                "Give more, or a smaller micro_batch.",
            )
        names = set()
        order = {name: place for place, name in enumerate(self._own)}
        for name, count in sorted(self._own.items(), key=lambda entry: (entry[1], -order[entry[0]])):
            if total + count > self._limit:
                break
            total += count
            names.add(name)
        self._names_to_keep[shape] = frozenset(names)


def shape_of(batch: Batch) -> Hashable:
    """Return what decides how much blocks keep: shapes, and what techniques drew for the whole window."""
    drawn = [(name, repr(value)) for name, value in batch.extras.items() if next(leaves(value), None) is None]
    return tuple(tuple(tensor.shape) for tensor in leaves(batch.data)), tuple(sorted(drawn))
