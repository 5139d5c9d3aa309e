"""Layers of a model, and the blocks that it is a chain of.

A layer that is adapted and the adapter around it are one layer: peft replaces a layer by a module that holds it as `base_layer`, with the
adapter's own layers beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import nn


def base_of(layer: nn.Module) -> nn.Module:
    """Return the layer itself, if need be inside of an adapter."""
    base: nn.Module = getattr(layer, "base_layer", layer)
    return base


def layers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules of a model, in its order; of an adapted layer only the whole, with its adapter.

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
    """Return the last linear layer, with the adapter around it if it has one.

    >>> last_linear(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3), nn.Softmax()))
    Linear(in_features=4, out_features=3, bias=True)
    """
    linear = [layer for layer in layers(model) if isinstance(base_of(layer), nn.Linear)]
    return linear[-1] if linear else None


def is_conv1d(module: nn.Module) -> bool:
    """Return whether it is transformers' Conv1D: a linear layer whose weight is (inputs, outputs), as GPT-2 has."""
    return type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils"


STOCK_HEADS = ("classifier", "score")
"""The heads of stock models for classification, which peft trains in full."""


def stock_heads(model: nn.Module) -> list[str]:
    """Return names of the heads of a stock model for classification."""
    stock = hasattr(model, "get_output_embeddings")
    return [name for name, _ in model.named_children() if stock and name in STOCK_HEADS]


def output_layer(model: nn.Module) -> nn.Module | None:
    """Return the layer from which a language model's logits come."""
    get = getattr(model, "get_output_embeddings", None)
    layer: nn.Module | None = get() if callable(get) else None
    return layer


def unsuitable(model: nn.Module) -> dict[str, str]:
    """Layers whose weight is no longer theirs to change, by name, and why they cannot be adapted."""
    reasons: dict[str, str] = {}
    holders: dict[int, set[tuple[int, str]]] = {}
    owners: dict[int, set[int]] = {}
    names: dict[int, str] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            reason = "is in nn.MultiheadAttention, which reads its weights without calling it"
            reasons[name] = "is an nn.MultiheadAttention, which reads its weights without calling its layers"
            reasons |= {f"{name}.{inner}": reason for inner, _ in module.named_modules() if inner}
        for child_name, child in module._modules.items():  # named_children gives each once
            holders.setdefault(id(child), set()).add((id(module), child_name))
        for key, parameter in module.named_parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(id(module))
            names.setdefault(id(parameter), f"{name}.{key}")
    for name, module in model.named_modules():
        if len(holders.get(id(module), ())) > 1:
            reasons[name] = "stands at several places of the model, and would be adapted at one"
        for parameter in module.parameters(recurse=False):
            if len(owners[id(parameter)]) > 1:
                reasons[name] = f"shares a weight ('{names[id(parameter)]}'), and merging would change both"
    return reasons


def replace_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put `module` where the one of this name was."""
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


_LISTS = (nn.ModuleList, nn.Sequential)


def parts_of(
    model: nn.Module, counts: Callable[[nn.Parameter], bool] = lambda _: True
) -> Iterator[tuple[str, bool]]:
    """Yield names of the parts of a model in its order, each with whether a list numbers it; one that holds no parameter is none.

    The entries of the outermost `ModuleList`s and `Sequential`s are parts, and so is what stands beside those lists.

    Args:
        counts: which parameters are looked at.

    >>> model = nn.ModuleDict({"words": nn.Embedding(5, 2), "layers": nn.ModuleList([nn.Linear(2, 2), nn.ReLU()])})
    >>> list(parts_of(model))
    [('words', False), ('layers.0', True)]
    """
    return _parts(model, "", counts)


def repeated_blocks(model: nn.Module, numbered_only: bool = False) -> dict[str, nn.Module]:
    """Return the numbered parts of a model by name, or its children where no list numbers any (or nothing then); each module once.

    >>> model = nn.ModuleDict({"words": nn.Embedding(5, 2), "layers": nn.ModuleList([nn.Linear(2, 2), nn.ReLU()])})
    >>> list(repeated_blocks(model)), list(repeated_blocks(nn.Transformer(4, 2, 1, 1, 8)))
    (['layers.0'], ['encoder.layers.0', 'decoder.layers.0'])
    """
    parts = list(parts_of(model))
    numbered = [name for name, in_list in parts if in_list]
    if not numbered and not numbered_only:
        numbered = [name for name, _ in parts]
    first: dict[int, str] = {}
    for name in numbered:
        first.setdefault(id(model.get_submodule(name)), name)
    return {name: model.get_submodule(name) for name in first.values()}


def _parts(
    module: nn.Module, path: str, counts: Callable[[nn.Parameter], bool]
) -> Iterator[tuple[str, bool]]:
    numbered = isinstance(module, _LISTS)
    for name, child in module.named_children():
        if not any(counts(parameter) for parameter in child.parameters()):
            continue
        whole = f"{path}{name}"
        if not numbered and any(isinstance(inner, _LISTS) for inner in child.modules()):
            yield from _parts(child, f"{whole}.", counts)
        else:
            yield whole, numbered
