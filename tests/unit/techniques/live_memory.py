"""Bytes that are alive, counted by storages and so the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """Follows the storages that operations make, or those on one kind of device; `peak` is the most that were alive after one of them."""

    def __init__(self, device: str | None = None) -> None:
        super().__init__()
        self.peak, self._device = 0, device
        self._bytes: dict[StorageWeakRef, int] = {}

    def now(self) -> int:
        self._bytes = {key: count for key, count in self._bytes.items() if not key.expired()}
        return sum(self._bytes.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {
            StorageWeakRef(x.untyped_storage()) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)
        }
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                key = StorageWeakRef(tensor.untyped_storage())
                if key not in given and self._device in (None, tensor.device.type):
                    self._bytes[key] = tensor.untyped_storage().nbytes()
        self.peak = max(self.peak, self.now())
        return result


@contextmanager
def counting() -> Iterator[Live]:
    """Counts what is made within."""
    with Live() as live:
        yield live
