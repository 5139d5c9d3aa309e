"""Layers of a model, and the blocks that it is a chain of.

A layer that is adapted and the adapter around it are one layer: peft replaces a layer by a module that holds it as `base_layer`, with the
adapter's own layers beside it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize


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


def unchanged_layers_warning(reasons: Mapping[str, str], technique: str) -> str:
    """Return a warning of layers that a technique leaves as they are though nobody says so, by name with the reason.

    >>> unchanged_layers_warning({"0": "has 6 inputs", "2": "has 10 inputs"}, "qat")
    "qat: '0' and 1 more stay whole: '0' has 6 inputs. What is to stay so unsaid is named in qat.skip."
    """
    first, reason = next(iter(reasons.items()))
    those = f"'{first}' and {len(reasons) - 1} more stay" if len(reasons) > 1 else f"'{first}' stays"
    return f"{technique}: {those} whole: '{first}' {reason}. What is to stay so unsaid is named in {technique}.skip."


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
    return reasons | odd_layers(model)


def odd_layers(model: nn.Module) -> dict[str, str]:
    """Return the layers that are more than a weight, by name, and why they cannot be adapted."""
    reasons: dict[str, str] = {}
    for name, module in model.named_modules():
        if _computes_weight(module):
            reasons[name] = "computes its weight anew in each forward, which no change of it would outlast"
        elif _has_own_forward(module):
            reasons[name] = "has a forward of its own, which no layer beside it or in its place goes through"
    return reasons


def _computes_weight(module: nn.Module) -> bool:
    """Return whether a layer has its weight of a parametrization, or of a hook such as weight_norm's, spectral_norm's or prune's.

    >>> _computes_weight(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))), _computes_weight(nn.Linear(2, 2))
    (True, False)
    """
    of_hooks = any(isinstance(vars(module).get(name), torch.Tensor) for name in ("weight", "bias"))
    return of_hooks or parametrize.is_parametrized(module)


def _has_own_forward(module: nn.Module) -> bool:
    """Return whether a layer of the user's own derives from one of torch's and computes something else."""
    kind = type(module)
    if not isinstance(module, (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return False
    return kind.__module__.partition(".")[0] not in _LIBRARIES and not _is_of_torch(kind.forward)


_LIBRARIES = {"torch", "torchao", "bitsandbytes", "peft", "transformers", "snugfit"}
"""Packages whose linear layers are linear, in whatever way they keep their weights."""


def _is_of_torch(function: Callable[..., Any]) -> bool:
    return getattr(function, "__module__", "").startswith("torch.")


def replace_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put `module` where the one of this name was, with the hooks of that."""
    parent, _, last = name.rpartition(".")
    move_hooks(model.get_submodule(name), module)
    setattr(model.get_submodule(parent), last, module)


def move_hooks(source: nn.Module, target: nn.Module) -> None:
    """Let the hooks of one module be those of another, which takes its place; their handles still remove them.

    >>> source, target = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> handle = source.register_forward_hook(lambda module, inputs, output: torch.ones_like(output))
    >>> move_hooks(source, target)
    >>> target(torch.ones(1)).item(), len(source._forward_hooks)
    (1.0, 0)
    >>> handle.remove()
    >>> len(target._forward_hooks)
    0
    """
    if source is target:
        return
    for name in _HOOKS:
        hooks = vars(source)[name]
        if hooks:
            hooks.update(vars(target)[name])
            vars(source)[name], vars(target)[name] = OrderedDict(), hooks
    if vars(source)[_FULL_BACKWARD] is not None:
        vars(target)[_FULL_BACKWARD], vars(source)[_FULL_BACKWARD] = vars(source)[_FULL_BACKWARD], None


_FULL_BACKWARD = "_is_full_backward_hook"
"""Where a module notes of which of torch's two kinds its backward hooks are; None where it has none."""
_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


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
