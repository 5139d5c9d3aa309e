"""A model's buffers over ranks: each rank moves them by its own rows, and after a window all ranks have the same."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from snugfit.core.scalar_reads import read
from snugfit.errors import SettingError, SnugfitWarning
from snugfit.strategies.base import SeveralRanks, Strategy

_RESHAPED = 1e6
"""Stands for a buffer of another shape, in a sum over ranks in which 1 stands for one of other numbers."""


class SharedBuffers:
    """Brings a model's buffers to the same numbers on all ranks, by their kind.

    - Running statistics of the data, by torch's convention named `running_…`: their mean over ranks.
    - Counters and all else that a window has moved: the first rank's, as torch's DDP does. Where ranks had other numbers, a warning says
      which buffer it is. One that no window moves, such as a mask, is looked at and not sent.
    - A buffer that is not saved (`persistent=False`) is a cache, and stays each rank's own.
    """

    def __init__(self, model: nn.Module, strategy: Strategy) -> None:
        self._model, self._strategy = model, strategy
        self._statistics: list[str] = []
        self._counters: list[str] = []
        self._watched: list[str] = []
        self._warned: set[str] = set()
        known = {name for name, _ in model.named_buffers()}  # one that several modules share has one name
        for prefix, module in model.named_modules():
            for name, buffer in module.named_buffers(prefix, recurse=False):
                own = name.rpartition(".")[2]
                if name not in known or own in module._non_persistent_buffers_set:
                    continue
                if own.startswith("running_") and buffer.is_floating_point():
                    self._statistics.append(name)
                elif isinstance(module, _NormBase):
                    self._counters.append(name)
                else:
                    self._watched.append(name)

    def before(self) -> dict[str, Tensor]:
        """Return copies of the buffers of which only a look tells whether a window moves them; most models have none."""
        if not self._watched or self._pretended:
            return {}
        buffers = dict(self._model.named_buffers())
        return {name: buffers[name].detach().clone() for name in self._watched if name in buffers}

    def share(self, before: Mapping[str, Tensor] | None = None) -> None:
        """Give all ranks the same numbers, after the passes over a window; all ranks call it.

        Args:
            before: what `before` returned at the beginning of the window; None where only statistics are estimated.
        Raises:
            SettingError: a buffer has another shape on another rank.
        """
        if not (self._statistics or self._counters or before):
            return
        buffers = dict(self._model.named_buffers())
        self._strategy.average_([buffers[name] for name in self._statistics])
        moved = self._moved(buffers, before) if before else []
        self._strategy.take_first_([buffers[name] for name in (*self._counters, *moved)])

    @property
    def _pretended(self) -> bool:
        return isinstance(self._strategy, SeveralRanks) and self._strategy.pretended

    @torch.no_grad()
    def _moved(self, buffers: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> list[str]:
        """Return the watched buffers that are no longer as before on some rank, in one exchange and one wait for the device."""
        flags = [_difference(buffers[name], old) for name, old in before.items()]
        device = next(iter(before.values())).device
        sums = self._strategy.add_up([flag.to(device) for flag in flags])
        changes: list[float] = read(torch.stack(sums), assume=[0.0] * len(sums))
        moved = [name for name, value in zip(before, changes, strict=True) if value > 0]
        if any(value >= _RESHAPED for value in changes):
            self._check_shapes(buffers, moved)
        if new := [name for name in moved if name not in self._warned]:
            self._warn(buffers, new)
        return moved

    def _check_shapes(self, buffers: Mapping[str, Tensor], names: Sequence[str]) -> None:
        shapes = self._strategy.tell([tuple(buffers[name].shape) for name in names])
        for name, of_ranks in zip(names, zip(*shapes, strict=True), strict=True):
            if len({*of_ranks}) > 1:
                raise SettingError(
                    "model",
                    f"buffer '{name}' has the shapes {' and '.join(map(str, of_ranks))} on the ranks, and one model is "
                    "saved",
                    "Give it one shape, or register it with persistent=False.",
                )

    def _warn(self, buffers: Mapping[str, Tensor], names: Sequence[str]) -> None:
        """Say once of each buffer that the ranks have moved it to other numbers."""
        self._warned.update(names)
        numbers = self._strategy.tell([_digest(buffers[name]) for name in names])
        for name, of_ranks in zip(names, zip(*numbers, strict=True), strict=True):
            if len({*of_ranks}) > 1:
                warnings.warn(
                    f"model: buffer '{name}' is moved by each rank's own rows. After each window all ranks take the first rank's, as under "
                    "torch's DDP. Name a running statistic running_… to have its mean over ranks instead.",
                    SnugfitWarning,
                    stacklevel=2,
                )


def _difference(now: Tensor, before: Tensor) -> Tensor:
    if now.shape != before.shape:
        return torch.tensor(_RESHAPED)
    return (now != before).any().float()


def _digest(tensor: Tensor) -> str:
    return hashlib.sha256(bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8))).hexdigest()
