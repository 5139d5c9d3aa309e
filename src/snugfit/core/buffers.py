"""Copies of a model's buffers: batch norm's statistics belong to a window's first pass only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Buffers:
    """Copies buffers out and back in. A model without buffers costs nothing."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def copy(self) -> list[Tensor]:
        return [buffer.detach().clone() for buffer in self._model.buffers()]

    def restore(self, copies: list[Tensor]) -> None:
        """Put the copies back; a cache that has another shape by now is left as it is."""
        with torch.no_grad():
            for buffer, copy in zip(self._model.buffers(), copies, strict=True):
                if buffer.shape == copy.shape:
                    buffer.copy_(copy)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within, buffers may change; on exit they are as before."""
        copies = self.copy()
        try:
            yield
        finally:
            self.restore(copies)


Mark = tuple[Tensor, int]


def marks_of(module: nn.Module) -> dict[str, Mark]:
    """The buffers by name, each with how often it was changed in place: without a look at their numbers.

    Batch norm's statistics do not show in it.
    """
    return {name: (buffer, buffer._version) for name, buffer in module.named_buffers()}


class MovedBuffers:
    """What the buffers of a module were before a forward that is computed again later: only those that it moved are kept.

    Those named `running_…` always count as moved: torch does not note what batch norm changes.

    >>> import torch
    >>> norm, inputs = nn.BatchNorm1d(1), torch.ones(2, 1)
    >>> moved = MovedBuffers(norm)
    >>> with moved.noted():
    ...     _ = norm(inputs)
    >>> with moved.rewound():
    ...     norm.running_mean
    tensor([0.])
    >>> norm.running_mean
    tensor([0.1000])
    """

    def __init__(self, module: nn.Module) -> None:
        self._places = [(part, name) for part in module.modules() for name in part._buffers]
        self._before: list[tuple[nn.Module, str, Tensor]] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Around the forward."""
        found = [(part, name, part._buffers[name]) for part, name in self._places]
        copies = [
            (part, name, buffer, buffer._version, buffer.detach().clone())
            for part, name, buffer in found
            if buffer is not None
        ]
        yield
        for part, name, buffer, version, copy in copies:
            same = part._buffers[name] is buffer and buffer._version == version
            if not same or name.startswith("running_"):
                self._before.append((part, name, copy))

    @contextmanager
    def rewound(self) -> Iterator[None]:
        """Around the same forward computed again: other tensors stand in for the buffers, which stay as they are."""
        present = [(part, name, part._buffers[name]) for part, name, _ in self._before]
        for part, name, copy in self._before:
            part._buffers[name] = copy.clone()
        try:
            yield
        finally:
            for part, name, buffer in present:
                part._buffers[name] = buffer
