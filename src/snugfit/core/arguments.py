"""A call's tensors apart from the rest of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

Rebuild = Callable[[Sequence[Tensor]], Any]


def taken_apart(tree: Any) -> tuple[list[Tensor], Rebuild]:
    """The tensors of nested tuples, and a function that puts others in their places.

    Dicts, lists and objects are left whole: who is called may change them.

    >>> import torch
    >>> tensors, rebuild = taken_apart(((torch.ones(1), (torch.zeros(1), "x")), {"scale": 2}))
    >>> rebuild([tensor + 1 for tensor in tensors])
    ((tensor([2.]), (tensor([1.]), 'x')), {'scale': 2})
    """
    tensors: list[Tensor] = []
    shape = _taken(tree, tensors)
    return tensors, lambda others: _filled(shape, iter(others))


class _Gap:
    """Where a tensor was."""


_GAP = _Gap()


def _taken(tree: Any, tensors: list[Tensor]) -> Any:
    if isinstance(tree, Tensor):
        tensors.append(tree)
        return _GAP
    if isinstance(tree, tuple):
        entries = [_taken(entry, tensors) for entry in tree]
        return type(tree)(*entries) if hasattr(tree, "_fields") else type(tree)(entries)
    return tree


def _filled(shape: Any, tensors: Iterator[Tensor]) -> Any:
    if shape is _GAP:
        return next(tensors)
    if isinstance(shape, tuple):
        entries = [_filled(entry, tensors) for entry in shape]
        return type(shape)(*entries) if hasattr(shape, "_fields") else type(shape)(entries)
    return shape
