"""Layers behind each other in a graph between which nothing stands but what is linear in what they get."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from snugfit.doctor.observe.graphs.graph_nodes import kind_of

MOST_STEPS = 64
_LAYERS = {"Addmm": 1, "Mm": 0}
"""What a layer is in a graph, and the place of its inputs there; its weights are behind them."""
_SQUASHES = ("Sigmoid", "Softmax", "LogSoftmax")
_LINEAR = (
    "View",
    "Reshape",
    "Unsafe",
    "Squeeze",
    "Unsqueeze",
    "Clone",
    "Alias",
    "ToCopy",
    "Transpose",
    "Permute",
    "NativeDropout",
    "Mul",
    "Div",
)


def linear_chain(node: Any) -> list[Tensor]:
    """Return the weights of the layers of which all of a value is made, the last first; none where something else is in it, but for a squash at the end.

    >>> import torch
    >>> from torch import nn
    >>> x, one, other = torch.ones(2, 3), nn.Linear(3, 4), nn.Linear(4, 1)
    >>> [tuple(each.shape) for each in linear_chain(other(one(x)).sigmoid().grad_fn)]
    [(1, 4), (4, 3)]
    >>> linear_chain(other(one(x).relu()).grad_fn), linear_chain(other(one(x) + one(x)).grad_fn)
    ([], [])
    """
    weights: list[Tensor] = []
    for _ in range(MOST_STEPS):
        if node is None:
            return weights
        kind, parts = kind_of(node), [each for each, _ in node.next_functions]
        if kind in _LAYERS and len(parts) == _LAYERS[kind] + 2:
            weight = _leaf_at(parts[-1])
            if weight is None or weight.dim() != 2:
                return []
            weights.append(weight)
            node = parts[_LAYERS[kind]]
        elif kind.startswith(_LINEAR) or (kind in _SQUASHES and not weights):
            graphs = [each for each in parts if each is not None]
            if len(graphs) != 1:
                return []
            node = graphs[0]
        else:
            return []
    return []


def _leaf_at(node: Any) -> Tensor | None:
    """Return the weights whose transposition a node is; None where it is none."""
    if kind_of(node) not in ("T", "Transpose"):
        return None
    leaf = getattr(node.next_functions[0][0], "variable", None)
    return leaf if isinstance(leaf, Tensor) else None
