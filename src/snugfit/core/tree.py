"""Walk nested batches and outputs: mappings, sequences, dataclasses, with tensors and torch's `PackedSequence` at the leaves."""

from __future__ import annotations

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from snugfit.core.scalar_reads import read
from snugfit.errors import DataError
from snugfit.system.device_copies import to_device


def leaves(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of `tree`, depth first; of packed sequences their elements."""
    if type(tree) is tuple and _TENSOR.issuperset(map(type, tree)):
        return iter(tree)
    flat = _flat(tree)
    if flat is not None:
        return iter(flat)
    return (leaf.data if isinstance(leaf, PackedSequence) else leaf for leaf in _walked(tree))


def parts(tree: Any) -> Iterator[Tensor | PackedSequence]:
    """Yield the tensors and the packed sequences of `tree`, depth first."""
    if type(tree) is tuple and _TENSOR.issuperset(map(type, tree)):
        return iter(tree)
    flat = _flat(tree)
    return _walked(tree) if flat is None else iter(flat)


def _flat(tree: Any) -> Iterable[Tensor] | None:
    """Return the tensors of a container that holds nothing else, as most batches do: the step asks several times an update."""
    kind = type(tree)
    if kind is dict:
        tree = tree.values()
    elif kind is not tuple and kind is not list:
        return None
    return tree if _TENSOR.issuperset(map(type, tree)) else None


_TENSOR = frozenset({Tensor})


def _walked(tree: Any) -> Iterator[Tensor | PackedSequence]:
    if isinstance(tree, (Tensor, PackedSequence)):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from _walked(value)
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from _walked(value)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in _given_fields(tree):
            yield from _walked(getattr(tree, field))


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
        mapping = kind(**entries) if dataclasses.is_dataclass(tree) else kind(entries)
        if mapping.keys() == entries.keys():
            return mapping
    except TypeError:
        pass
    raise DataError(
        "batch",
        f"a {kind.__name__} cannot be made again from a dict of its entries, which a micro-batch of it needs",
        "Return a dict from collate.",
    )


def zip_tensors(trees: list[Any]) -> list[list[Tensor]]:
    """Transpose equal structures: for each tensor of the structure, its versions in all `trees`."""
    return [list(column) for column in zip(*(list(leaves(tree)) for tree in trees), strict=True)]


def joined(trees: list[Any]) -> Any:
    """Return one structure of all `trees` of the same structure, their tensors joined along the rows."""
    columns = iter(zip_tensors(trees))
    return map_tree(lambda _: torch.cat(next(columns)), trees[0], packed=_not_joined)


def _not_joined(_packed: PackedSequence) -> NoReturn:
    raise RuntimeError("packed sequences cannot be joined: return padded tensors")


def _given_fields(tree: Any) -> list[str]:
    """Return names of a dataclass's fields but for those that it computes itself."""
    return [field.name for field in dataclasses.fields(tree) if field.init]


_PLACES = "places_of_rows"


def rows_of_packed(packed: PackedSequence) -> int:
    """Return the number of sequences.

    >>> rows_of_packed(torch.nn.utils.rnn.pack_sequence([torch.zeros(3), torch.zeros(2)]))
    2
    """
    return int(packed.batch_sizes[0])  # always in host memory


def map_packed(function: Callable[[Tensor], Any], packed: PackedSequence) -> PackedSequence:
    """Return the sequences with `function` on their elements and indices, such as a copy to a device.

    The number of sequences at each step stays in host memory, as torch wants it.
    """
    places = _places(packed)
    _, _, *indices = packed
    made = PackedSequence(
        function(packed.data), packed.batch_sizes, *(None if i is None else function(i) for i in indices)
    )
    setattr(made, _PLACES, places)
    return made


def select_packed(packed: PackedSequence, rows: Sequence[int]) -> PackedSequence:
    """Return the sequences of these rows, in this order; nothing waits for the device.

    >>> from torch.nn.utils.rnn import pack_sequence, unpack_sequence
    >>> packed = pack_sequence([torch.tensor([1]), torch.tensor([2, 3]), torch.tensor([4])], enforce_sorted=False)
    >>> unpack_sequence(select_packed(packed, [2, 1]))
    [tensor([4]), tensor([2, 3])]
    """
    sizes = packed.batch_sizes
    places = _places(packed)
    selected = torch.tensor([places[row] for row in rows])
    lengths = (sizes > selected.unsqueeze(1)).sum(dim=1)
    lengths, order = lengths.sort(descending=True, stable=True)
    # an element stands behind those of earlier steps, at the place of its sequence
    here = lengths > torch.arange(int(lengths[0])).unsqueeze(1)
    starts = (sizes.cumsum(0) - sizes)[: len(here)]
    elements = (starts.unsqueeze(1) + selected[order])[here]
    device = packed.data.device
    ordered = packed.sorted_indices is None and bool((order == torch.arange(len(rows))).all())
    back = torch.argsort(order)
    made = PackedSequence(
        packed.data.index_select(0, to_device(elements, device)),
        here.sum(dim=1),
        None if ordered else to_device(order, device),
        None if ordered else to_device(back, device),
    )
    setattr(made, _PLACES, read(back, assume=list(range(len(rows)))))
    return made


def _places(packed: PackedSequence) -> list[int]:
    """Return each row's place among the sequences by length, which is kept on the host: the indices may be on a device."""
    places: list[int] | None = getattr(packed, _PLACES, None)
    if places is None:
        indices = packed.unsorted_indices
        in_order = list(range(rows_of_packed(packed)))
        places = in_order if indices is None else read(indices, assume=in_order)
    return places
