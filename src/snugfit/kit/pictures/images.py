"""The images of a batch: floating tensors of shape (rows, channels, height, width)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from snugfit.core.batch import LABELS
from snugfit.core.tree import leaves, map_tree
from snugfit.errors import SettingError


def map_images(function: Callable[[Tensor], Tensor], data: Any, setting: str) -> Any:
    """Return the batch's data with `function` on its images.

    Args:
        setting: the name of the technique that wants images.
    Raises:
        SettingError: there are none.
    """
    if not any(_is_image(tensor) for tensor in leaves(data)):
        raise SettingError(
            setting,
            "the batch has no images, floating tensors of shape (rows, channels, height, width)",
            "Remove it, or give images so.",
        )
    return map_tree(lambda tensor: function(tensor) if _is_image(tensor) else tensor, data)


def refuse_labels_of_pixels(data: Any, setting: str) -> None:
    """Refuse labels that go along the pixels, by a technique that changes which pixels there are.

    Raises:
        SettingError: there are such.
    """
    if any(tensor.ndim >= 3 for tensor in leaves(_labels(data))):
        raise SettingError(
            setting, "the labels have an entry for each pixel, and would no longer fit", "Remove it."
        )


def _labels(data: Any) -> Any:
    if isinstance(data, Mapping):
        return data.get(LABELS)
    return data[-1] if isinstance(data, (tuple, list)) and len(data) > 1 else None


def _is_image(tensor: Tensor) -> bool:
    return tensor.ndim == 4 and tensor.is_floating_point()
