"""Walk nested batches and outputs: mappings, sequences, dataclasses with tensors at the leaves."""

from __future__ import annotations

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from snugfit.core.packed_sequences import map_packed
from snugfit.errors import DataError


def leaves(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of `tree`, depth first; of packed sequences their elements."""
    for leaf in parts(tree):
        yield leaf.data if isinstance(leaf, PackedSequence) else leaf


def parts(tree: Any) -> Iterator[Tensor | PackedSequence]:
    """Yield the tensors and the packed sequences of `tree`, depth first."""
    if isinstance(tree, (Tensor, PackedSequence)):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from parts(value)
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from parts(value)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in _given_fields(tree):
            yield from parts(getattr(tree, field))


def map_tree(
    function: Callable[[Tensor], Any],
    tree: Any,
    others: Callable[[Any], Any] = lambda leaf: leaf,
    packed: Callable[[PackedSequence], Any] | None = None,
) -> Any:
    """Rebuild `tree` with `function` on its tensors and `others` on what is neither tensor nor container.

    A list or tuple without a tensor in it counts as one leaf: it holds one entry a row, such as names.

    Args:
        packed: for packed sequences; without it `function` maps their elements, one by one as they are.
    """
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, PackedSequence):
        return map_packed(function, tree) if packed is None else packed(tree)
    if isinstance(tree, Mapping):
        mapped = {key: map_tree(function, value, others, packed) for key, value in tree.items()}
        return mapped if type(tree) is dict else mapping_like(tree, mapped)
    if isinstance(tree, (list, tuple)):
        if next(leaves(tree), None) is None:
            return others(tree)
        values = [map_tree(function, value, others, packed) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = _given_fields(tree)
        return dataclasses.replace(
            tree, **{name: map_tree(function, getattr(tree, name), others, packed) for name in fields}
        )
    return others(tree)


def mapping_like(tree: Mapping[Any, Any], entries: dict[Any, Any]) -> Any:
    """Return a mapping of the type of `tree` with other entries.

    Raises:
        DataError: the type cannot be made from its entries.

    >>> mapping_like(defaultdict(list, old=[1]), {"new": 2})
    defaultdict(<class 'list'>, {'new': 2})
    """
    if isinstance(tree, defaultdict):  # its first argument is not the entries
        made = copy.copy(tree)
        made.clear()
        made.update(entries)
        return made
    kind: Any = type(tree)
    try:
        # transformers' ModelOutput takes its fields by name, other mappings one mapping
        found = kind(**entries) if dataclasses.is_dataclass(tree) else kind(entries)
        if found.keys() == entries.keys():
            return found
    except TypeError:
        pass
    raise DataError(
        f"batch: a {kind.__name__} cannot be made again from a dict of its entries, which a micro-batch of it needs. Return a dict from "
        "collate."
    )


def zip_tensors(trees: list[Any]) -> list[list[Tensor]]:
    """Transpose equal structures: for each tensor of the structure, its versions in all `trees`."""
    return [list(column) for column in zip(*(list(leaves(tree)) for tree in trees), strict=True)]


def joined(trees: list[Any]) -> Any:
    """One structure of all `trees` of the same structure, their tensors joined along the rows."""
    columns = iter(zip_tensors(trees))
    return map_tree(lambda _: torch.cat(next(columns)), trees[0], packed=_not_joined)


def _not_joined(packed: PackedSequence) -> NoReturn:
    raise RuntimeError("packed sequences cannot be joined: return padded tensors")


def _given_fields(tree: Any) -> list[str]:
    """Names of a dataclass's fields but for those that it computes itself."""
    return [field.name for field in dataclasses.fields(tree) if field.init]
