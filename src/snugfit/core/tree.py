"""Walk nested batches and outputs: mappings, sequences, dataclasses with tensors at the leaves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


def leaves(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of `tree`, depth first."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from leaves(value)
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from leaves(value)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            yield from leaves(getattr(tree, field.name))


def map_tree(
    function: Callable[[Tensor], Any], tree: Any, others: Callable[[Any], Any] = lambda leaf: leaf
) -> Any:
    """Rebuild `tree` with `function` on its tensors and `others` on what is neither tensor nor container.

    A list or tuple without a tensor in it counts as one leaf: it holds one entry a row, such as names.
    """
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        mapped = {key: map_tree(function, value, others) for key, value in tree.items()}
        if type(tree) is dict:
            return mapped
        # transformers' ModelOutput takes its fields by name, other mappings one mapping
        return type(tree)(**mapped) if dataclasses.is_dataclass(tree) else type(tree)(mapped)  # type: ignore[call-arg]
    if isinstance(tree, (list, tuple)):
        if next(leaves(tree), None) is None:
            return others(tree)
        values = [map_tree(function, value, others) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = {f.name: map_tree(function, getattr(tree, f.name), others) for f in dataclasses.fields(tree)}
        return dataclasses.replace(tree, **fields)
    return others(tree)


def zip_tensors(trees: list[Any]) -> list[list[Tensor]]:
    """Transpose equal structures: for each tensor of the structure, its versions in all `trees`."""
    return [list(column) for column in zip(*(list(leaves(tree)) for tree in trees), strict=True)]


def joined(trees: list[Any]) -> Any:
    """One structure of all `trees` of the same structure, their tensors joined along the rows."""
    columns = iter(zip_tensors(trees))
    return map_tree(lambda _: torch.cat(next(columns)), trees[0])
