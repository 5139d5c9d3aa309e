"""Counting what is allocated, on devices whose allocator keeps no account."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class AllocatedBytes(TorchDispatchMode):
    """A mode that counts the bytes of tensors on `device` that operations make: those alive `now`, and after each operation.

    What was there before does not count, nor what a kernel takes and gives back inside one operation.

    >>> with AllocatedBytes() as allocated:
    ...     kept = torch.zeros(10) + torch.ones(10)
    >>> allocated.history, allocated.peak, allocated.now
    ([40, 80, 120], 120, 40)
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = torch.device(device)
        self.now = 0
        self.history: list[int] = []
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        before = {id(leaf.untyped_storage()) for leaf in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for leaf in _tensors(result):
            storage = leaf.untyped_storage()
            if leaf.device.type == self.device.type and (
                id(storage) not in before or id(storage) in self._known
            ):
                self._count(storage)
        self.history.append(self.now)
        return result

    @property
    def peak(self) -> int:
        """The most that were alive at a time."""
        return max(self.history, default=0)

    def _count(self, storage: Any) -> None:
        place, size = id(storage), storage.nbytes()
        reference, counted = self._known.get(place, (None, 0))
        if reference is None:
            reference = weakref.ref(storage, lambda _: self._forget(place))
        self._known[place] = reference, size  # one that was counted may have been resized
        self.now += size - counted

    def _forget(self, place: int) -> None:
        _, size = self._known.pop(place)
        self.now -= size


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and not leaf.is_sparse]
