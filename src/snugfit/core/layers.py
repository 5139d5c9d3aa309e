"""What counts as one layer of a model: one that is adapted, and the adapter around it, are the same layer.

peft replaces a layer by a module that holds it as `base_layer`, with the adapter's own layers beside it.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def base_of(layer: nn.Module) -> nn.Module:
    """The layer itself, if need be inside of an adapter."""
    base: nn.Module = getattr(layer, "base_layer", layer)
    return base


def layers(model: nn.Module) -> Iterator[nn.Module]:
    """The modules of a model, in its order; of an adapted layer only the whole, with its adapter.

    >>> [type(layer).__name__ for layer in layers(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))]
    ['Sequential', 'Linear', 'ReLU']
    """
    inside: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if name.startswith(inside):
            continue
        if base_of(module) is not module:
            inside = (*inside, f"{name}.")
        yield module


def last_linear(model: nn.Module) -> nn.Module | None:
    """The last linear layer, with the adapter around it if it has one.

    >>> last_linear(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3), nn.Softmax()))
    Linear(in_features=4, out_features=3, bias=True)
    """
    linear = [layer for layer in layers(model) if isinstance(base_of(layer), nn.Linear)]
    return linear[-1] if linear else None


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is transformers' Conv1D: a linear layer whose weight is (inputs, outputs), as GPT-2 has."""
    return type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils"
