"""The largest examples of a data set: a window of them needs the most memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from snugfit.data.examples import Examples, FromRows
from snugfit.data.texts.token_rows import ArrayExamples


def largest(dataset: Any, count: int) -> list[int] | None:
    """Return indices of the `count` largest examples, the largest first.

    Returns:
        None where the examples are not in memory already: to look at each of them might take as long as an epoch.

    >>> largest([{"text": "a"}, {"text": "a long one"}, {"text": "short"}], count=2)
    [1, 2]
    """
    if isinstance(dataset, TensorDataset) or (isinstance(dataset, FromRows) and dataset.alike):
        return list(range(count))
    sizes = _lengths(dataset) if isinstance(dataset, FromRows) else _sizes(dataset)
    if sizes is None:
        return None
    return sorted(range(len(sizes)), key=lambda index: -sizes[index])[:count]


def token_counts(dataset: Any) -> list[int] | None:
    """Return the tokens of each example, as `dataset.lengths` says them, or of `input_ids` without their padding.

    Returns:
        None where the examples are not in memory already, or one has no `input_ids`.

    >>> token_counts([{"input_ids": [5, 6, 0], "attention_mask": [1, 1, 0]}, {"input_ids": [[5], [5, 6]]}])
    [2, 3]
    """
    if isinstance(dataset, Subset):
        inner = token_counts(dataset.dataset)
        return None if inner is None else [inner[index] for index in dataset.indices]
    examples = dataset.examples if isinstance(dataset, Examples) else dataset
    if isinstance(examples, ArrayExamples):
        return examples.token_counts()
    if (lengths := _lengths(dataset)) is not None:
        return lengths
    if not isinstance(examples, Sequence):
        return None
    counts = []
    for each in examples:
        if not isinstance(each, Mapping) or "input_ids" not in each:
            return None
        counts.append(_tokens(each))
    return counts


def _lengths(dataset: Any) -> list[int] | None:
    """Return the tokens of each example as the data set says them; None where it does not."""
    lengths = getattr(dataset, "lengths", None)
    return None if lengths is None or callable(lengths) else [int(each) for each in lengths]


def _tokens(example: Mapping[str, Any]) -> int:
    mask = example.get("attention_mask")
    if isinstance(mask, (Tensor, np.ndarray)) and mask.ndim == 1:
        return int((mask != 0).sum())
    if isinstance(mask, list) and not any(isinstance(each, Sequence) for each in mask[:1]):
        return len(mask) - mask.count(0)
    return _size(example["input_ids"])


def _sizes(dataset: Any) -> list[int] | None:
    if isinstance(dataset, Subset):
        inner = _sizes(dataset.dataset)
        return None if inner is None else [inner[index] for index in dataset.indices]
    if isinstance(dataset, Examples) and isinstance(dataset.examples, ArrayExamples):
        return dataset.examples.sizes()
    return [_size(example) for example in dataset] if isinstance(dataset, (list, tuple, Examples)) else None


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


def padding_share(windows: Sequence[Sequence[int]], micro_batch: int) -> float:
    """Return the share of the tokens of micro-batches that is padding, from the lengths of the windows' texts; 0 where there are none.

    >>> [f"{padding_share([(4, 1, 2)], micro_batch=rows):.2f}" for rows in (3, 2, 1)]
    ['0.42', '0.30', '0.00']
    """
    tokens = space = 0
    for lengths in windows:
        for start in range(0, len(lengths), micro_batch):
            part = lengths[start : start + micro_batch]
            tokens, space = tokens + sum(part), space + len(part) * max(part)
    return 1 - tokens / space if space else 0.0
