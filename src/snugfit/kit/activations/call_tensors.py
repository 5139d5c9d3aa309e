"""A call's tensors apart from the rest of its arguments."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

Rebuild = Callable[[Sequence[Tensor]], Any]


def taken_apart(tree: Any) -> tuple[list[Tensor], Rebuild]:
    """Return the tensors of nested tuples, and a function that puts others in their places.

    Dicts, lists and objects are left whole: who is called may change them.

    >>> import torch
    >>> tensors, rebuild = taken_apart(((torch.ones(1), (torch.zeros(1), "x")), {"scale": 2}))
    >>> rebuild([tensor + 1 for tensor in tensors])
    ((tensor([2.]), (tensor([1.]), 'x')), {'scale': 2})
    """
    tensors: list[Tensor] = []
    shape = _taken(tree, tensors)
    return tensors, lambda others: _filled(shape, iter(others))


def apart(tree: Any) -> Any:
    """Return the same with dicts and lists of its own, so that who changes the ones changes not the others; tensors are the same.

    >>> given = ([1], {"a": [2]})
    >>> copied = apart(given)
    >>> given[1]["a"].append(3)
    >>> copied
    ([1], {'a': [2]})
    """
    if type(tree) is dict:
        return {key: apart(value) for key, value in tree.items()}
    if type(tree) is list:
        return [apart(entry) for entry in tree]
    if isinstance(tree, (dict, list)):
        return copy.copy(tree)
    if isinstance(tree, tuple):
        entries = [apart(entry) for entry in tree]
        return type(tree)(*entries) if hasattr(tree, "_fields") else type(tree)(entries)
    return tree


class _Gap:
    """The place where a tensor was."""


_GAP = _Gap()


@dataclass(frozen=True, eq=False)
class _PackedGap:
    """The place where the elements of packed sequences were."""

    packed: PackedSequence


def _taken(tree: Any, tensors: list[Tensor]) -> Any:
    if isinstance(tree, Tensor):
        tensors.append(tree)
        return _GAP
    if isinstance(tree, PackedSequence):  # its batch sizes and indices are no inputs of the computation
        tensors.append(tree.data)
        return _PackedGap(tree)
    if isinstance(tree, tuple):
        entries = [_taken(entry, tensors) for entry in tree]
        return type(tree)(*entries) if hasattr(tree, "_fields") else type(tree)(entries)
    return tree


def _filled(shape: Any, tensors: Iterator[Tensor]) -> Any:
    if shape is _GAP:
        return next(tensors)
    if isinstance(shape, _PackedGap):
        return PackedSequence(next(tensors), *shape.packed[1:])
    if isinstance(shape, tuple):
        entries = [_filled(entry, tensors) for entry in shape]
        return type(shape)(*entries) if hasattr(shape, "_fields") else type(shape)(entries)
    return shape
