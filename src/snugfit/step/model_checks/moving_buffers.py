"""Buffers that each forward moves, which makes the size of a micro-batch a part of what is learned: said once, after the first split window."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from snugfit.kit.batch_norm import takes_statistics
from snugfit.step.micro_batch_sizes import BATCH_NORM
from snugfit.units import counted

_MOST_NAMED = 3
_WHOLE = "recompute may make them fit"


class MovingBuffers:
    """The buffers of a model before its first window, which is split; batch norm's are told apart.

    >>> class Centred(nn.Module):
    ...     def __init__(self) -> None:
    ...         super().__init__()
    ...         self.register_buffer("mean", torch.zeros(2))
    ...     def forward(self, inputs: Tensor) -> Tensor:
    ...         self.mean = 0.9 * self.mean + 0.1 * inputs.mean(0)
    ...         return inputs - self.mean
    >>> model = Centred()
    >>> watch = MovingBuffers(model)
    >>> _ = model(torch.ones(4, 2))
    >>> watch.message()
    "each forward moves the buffer 'mean', and micro-batches are as many forwards: where the model computes with it, their size is part of what is learned. Take windows whole where that matters: recompute may make them fit"
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = {name: buffer.clone() for name, buffer in _state_buffers(model)}

    def message(self) -> str | None:
        """Return what there is to say of a size of micro-batches that is learned from; None where it is not. Waits for the device."""
        if any(takes_statistics(module) for module in self._model.modules()):
            return (
                f"{BATCH_NORM}. Add ghost_batch_norm, with which it is not, or take windows whole: {_WHOLE}"
            )
        moved = [
            name
            for name, buffer in _state_buffers(self._model)
            if name in self._before and not torch.equal(self._before[name], buffer)
        ]
        if not moved:
            return None
        names = ", ".join(f"'{name}'" for name in moved[:_MOST_NAMED])
        more = len(moved) - _MOST_NAMED
        listed = f"{names} and {counted(more, 'other')}" if more > 0 else names
        one = len(moved) == 1
        return (
            f"each forward moves the {'buffer' if one else 'buffers'} {listed}, and micro-batches are as many forwards: where the model "
            f"computes with {'it' if one else 'them'}, their size is part of what is learned. "
            f"Take windows whole where that matters: {_WHOLE}"
        )


def _state_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers of real numbers that belong to the model's state, but for batch norm's; counters steer no numbers."""
    for prefix, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            continue
        for name, buffer in module._buffers.items():
            if buffer is None or name in module._non_persistent_buffers_set:
                continue
            if buffer.is_floating_point() or buffer.is_complex():
                yield f"{prefix}.{name}" if prefix else name, buffer.detach()
