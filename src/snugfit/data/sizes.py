"""The largest examples of a data set: a window of them needs the most memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from snugfit.data.examples import FromRows


def largest(dataset: Any, count: int) -> list[int] | None:
    """Return indices of the `count` largest examples, the largest first.

    Returns:
        None where the examples are not in memory already: to look at each of them might take as long as an epoch.

    >>> largest([{"text": "a"}, {"text": "a long one"}, {"text": "short"}], count=2)
    [1, 2]
    """
    if isinstance(dataset, TensorDataset) or (isinstance(dataset, FromRows) and dataset.alike):
        return list(range(count))
    sizes = _sizes(dataset)
    if sizes is None:
        return None
    return sorted(range(len(sizes)), key=lambda index: -sizes[index])[:count]


def _sizes(dataset: Any) -> list[int] | None:
    if isinstance(dataset, Subset):
        inner = _sizes(dataset.dataset)
        return None if inner is None else [inner[index] for index in dataset.indices]
    return [_size(example) for example in dataset] if isinstance(dataset, (list, tuple)) else None


def _size(value: Any) -> int:
    """Return numbers in an example, or characters of a text that is still to be cut into tokens."""
    if isinstance(value, Tensor):
        return value.numel()
    if isinstance(value, np.ndarray):
        return value.size
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    if isinstance(value, Sequence):
        # the entries of an example are few, tokens are many and of one kind: looking at the first is enough
        return len(value) if value and isinstance(value[0], (int, float)) else sum(map(_size, value))
    return 1
