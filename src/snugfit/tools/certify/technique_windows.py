"""Windows of variable-length texts and of images that a technique is tried on, and the same windows spoilt."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from snugfit.tools.certify.technique_models import FEATURES, IMAGE, LONGEST, VOCABULARY

IGNORED = -100

Window = dict[str, Any]


def texts(per_token: bool) -> Callable[[Sequence[int]], list[Window]]:
    """Return a function that makes windows of texts from numbers of rows."""

    def make(rows: Sequence[int]) -> list[Window]:
        source = torch.Generator().manual_seed(7)
        return [_text(count, per_token, source) for count in rows]

    return make


def _text(rows: int, per_token: bool, source: torch.Generator) -> Window:
    lengths = torch.randint(2, LONGEST + 1, (rows,), generator=source)
    longest = int(lengths.max())
    mask = (torch.arange(longest) < lengths.unsqueeze(1)).long()
    ids = torch.randint(1, VOCABULARY, (rows, longest), generator=source) * mask
    labels = torch.randint(0, VOCABULARY, (rows, longest) if per_token else (rows,), generator=source)
    ignored = torch.rand(labels.shape, generator=source) < 0.2
    ignored[0] = False  # something always counts
    if per_token:
        ignored |= mask == 0
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "context": {
            "names": [f"row {row}" for row in range(rows)],
            "numbers": {"features": torch.randn(rows, FEATURES, generator=source)},
        },
        "labels": labels.masked_fill(ignored, IGNORED),
    }


def images(name: str) -> Callable[[Sequence[int]], list[Window]]:
    """Return a function that makes windows of images from numbers of rows."""

    def make(rows: Sequence[int]) -> list[Window]:
        source = torch.Generator().manual_seed(13)
        return [
            {
                name: torch.randn(count, 1, IMAGE, IMAGE, generator=source),
                "labels": torch.randint(0, 3, (count,), generator=source),
            }
            for count in rows
        ]

    return make


def cast(window: Window, dtype: torch.dtype) -> Window:
    """Return a deep copy with floating tensors in `dtype`."""
    return {key: _cast(value, dtype) for key, value in window.items()}


def poisoned(window: Window, value: float, rows: Sequence[int] = (0, -1)) -> Window:
    """Return the window with `value` in the floating inputs of some rows: the first and the last one."""
    window = copy.deepcopy(window)
    entry = next(name for name in ("context", "numbers", "pixels", "pixel_values") if name in window)
    floating = window["context"]["numbers"]["features"] if entry == "context" else window[entry]
    floating[list(rows)] = value  # a row alone may pass a block that stochastic depth leaves out
    return window


def unlabelled(window: Window) -> Window:
    """Return the window without any label that counts."""
    return {**copy.deepcopy(window), "labels": torch.full_like(window["labels"], IGNORED)}


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, dict):
        return {key: _cast(entry, dtype) for key, entry in value.items()}
    if isinstance(value, Tensor):
        return value.to(dtype, copy=True) if value.is_floating_point() else value.clone()
    return list(value)
