"""Two embeddings a row, in the forms in which models give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from snugfit.errors import SettingError


def pair_of(outputs: Any) -> tuple[Tensor, Tensor]:
    """Queries and keys (rows, width): entries or attributes `query` and `key`, a tuple, or one tensor (rows, 2, width).

    Raises:
        SettingError: the outputs hold no such pair; says what they hold.

    >>> import torch
    >>> query, key = pair_of(torch.zeros(5, 2, 3))
    >>> query.shape, key.shape
    (torch.Size([5, 3]), torch.Size([5, 3]))
    """
    if isinstance(outputs, Tensor) and outputs.ndim == 3 and outputs.shape[1] == 2:
        return outputs[:, 0], outputs[:, 1]
    match outputs:
        case (
            {"query": Tensor(ndim=2) as query, "key": Tensor(ndim=2) as key}
            | object(query=Tensor(ndim=2) as query, key=Tensor(ndim=2) as key)
            | [Tensor(ndim=2) as query, Tensor(ndim=2) as key, *_]
        ) if query.shape == key.shape:
            return query, key
    raise SettingError(
        f"loss: info_nce needs two embeddings a row, and found {_contents(outputs)} in {type(outputs).__name__}. Return 'query' "
        "and 'key' of shape (rows, width), a tuple that begins with both, or one tensor of shape (rows, 2, width). For a "
        "classifier, use cross_entropy."
    )


def _contents(outputs: Any) -> str:
    """Names and shapes of what is there.

    >>> import torch
    >>> _contents({"loss": None, "logits": torch.zeros(8, 4)})
    'loss NoneType, logits (8, 4)'
    """
    if isinstance(outputs, Mapping):
        parts = list(outputs.items())
    elif isinstance(outputs, (tuple, list)):
        parts = list(enumerate(outputs))
    else:
        parts = [(name, getattr(outputs, name)) for name in ("query", "key") if hasattr(outputs, name)]
        parts = parts or [("", outputs)]
    shown = (
        f"{name} {tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__}".strip()
        for name, part in parts
    )
    return ", ".join(shown) or "nothing"
