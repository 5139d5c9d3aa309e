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
