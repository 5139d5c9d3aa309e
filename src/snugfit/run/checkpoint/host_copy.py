"""A copy of what is saved, in host memory, that stays as it is while the training goes on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from snugfit.kit.serialize import Packed
from snugfit.kit.sharded_tensors import own_part
from snugfit.system.device_copies import pin_memory

_PINNED = 1 << 20
"""Bytes from which a copy of what lies on a CUDA device is pinned; of less, pinning would take longer than it gains."""


@dataclass(eq=False)
class _Place:
    """Host memory for the copy of a tensor, or of this rank's part of one."""

    tensor: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> _Place:
        """Return one that is like it."""
        made = cls(torch.empty_like(tensor, device="cpu", memory_format=torch.contiguous_format))
        part = own_part(made.tensor)
        if tensor.device.type == "cuda" and part.nbytes >= _PINNED:
            pin_memory(part, made, "checkpoint.save", "write checkpoints while the training waits (sync)")
        return made

    def fits(self, tensor: Tensor) -> bool:
        """Return whether the memory is like it."""
        mine, its = (
            (each.shape, each.dtype, getattr(each, "placements", None)) for each in (self.tensor, tensor)
        )
        return mine == its


class Snapshot:
    """`take` copies what was packed; each copy is written over the one before, so that the memory is asked for once.

    It takes the bytes of all that is saved, on each rank those of its parts.
    """

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}

    @torch.no_grad()
    def take(self, packed: Packed) -> Packed:
        """Return the copy, which is complete when this returns.

        Raises:
            SettingError: host memory cannot be pinned.
        """
        before, self._places = self._places, {}
        devices: set[torch.device] = set()

        def copy(name: str, tensor: Tensor) -> Tensor:
            place = before.pop(name, None)
            if place is None or not place.fits(tensor):
                place = _Place.of(tensor)
            self._places[name] = place
            devices.add(tensor.device)
            return place.tensor.copy_(tensor, non_blocking=True)

        copied = packed.copied(copy)
        for device in devices - {torch.device("cpu")}:
            torch.accelerator.synchronize(device)
        return copied
