"""The tensors that autograd keeps for backward: their storages and bytes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def storage_of(tensor: Tensor) -> StorageWeakRef:
    """Return the storage of a tensor as a key: it does not keep the storage, and while it is held no other takes that place.

    >>> import torch
    >>> weight = torch.ones(2, 2)
    >>> storage_of(weight) == storage_of(weight.t()), storage_of(weight) == storage_of(weight.clone())
    (True, False)
    """
    return StorageWeakRef(tensor.untyped_storage())


def storages_of(tensors: Iterable[Tensor]) -> Iterator[StorageWeakRef]:
    """Yield the storages of tensors, of which a quantised weight has several, and a sharded one names its mesh besides."""
    for tensor in tensors:
        if is_traceable_wrapper_subclass(tensor):
            names, _ = tensor.__tensor_flatten__()
            parts = (getattr(tensor, name) for name in names)
            yield from storages_of(part for part in parts if isinstance(part, Tensor))
        else:
            yield storage_of(tensor)


class SavedBytes:
    """Counts storages, each once, with those of some tensors left out."""

    def __init__(self, leave_out: Iterable[Tensor] = ()) -> None:
        self._left_out = set(storages_of(leave_out))
        self._bytes: dict[StorageWeakRef, int] = {}

    def add(self, tensor: Tensor) -> None:
        key = storage_of(tensor)
        if key not in self._left_out:
            self._bytes[key] = tensor.untyped_storage().nbytes()

    def total(self) -> int:
        """Return bytes of all of them."""
        return sum(self._bytes.values())


@contextmanager
def counting_saved(leave_out: Iterable[Tensor] = (), *, keep: bool = True) -> Iterator[SavedBytes]:
    """Count what autograd keeps of what is computed within, but for the storages of some tensors, such as the weights.

    Args:
        keep: False for a forward without a backward: nothing is kept.

    >>> import torch
    >>> inputs = torch.ones(4, requires_grad=True)
    >>> with counting_saved([inputs]) as saved:
    ...     outputs = (inputs * 2).exp()
    >>> saved.total()
    16
    """
    saved = SavedBytes(leave_out)

    def pack(tensor: Tensor) -> Any:
        saved.add(tensor)
        return tensor if keep else None

    with saved_tensors_hooks(pack, _as_is):
        yield saved


@contextmanager
def watched_graphs() -> Iterator[Callable[[], bool]]:
    """Return a function that says whether a graph made within still lives, as where something holds a tensor of it.

    >>> import torch
    >>> with watched_graphs() as graph_lives:
    ...     outputs = torch.ones(2, requires_grad=True).exp()
    >>> graph_lives()
    True
    >>> del outputs
    >>> graph_lives()
    False
    """
    references: list[weakref.ref[_Saved]] = []

    def pack(tensor: Tensor) -> _Saved:
        saved = _Saved(tensor.detach())  # what an operation gave would hold its own graph
        references.append(weakref.ref(saved))
        return saved

    def graph_lives() -> bool:
        if any(saved() is not None for saved in references):
            gc.collect()  # a circle may still hold it
        return any(saved() is not None for saved in references)

    with saved_tensors_hooks(pack, lambda saved: saved.tensor):
        yield graph_lives


class _Saved:
    """The handle that autograd holds in place of a tensor."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def _as_is(packed: Any) -> Any:
    return packed
