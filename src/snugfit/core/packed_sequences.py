"""torch's `PackedSequence` as part of a batch: each sequence is a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from snugfit.core.scalar_reads import read

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
        packed.data.index_select(0, elements.to(device)),
        here.sum(dim=1),
        None if ordered else order.to(device),
        None if ordered else back.to(device),
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
