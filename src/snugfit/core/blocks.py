"""The blocks of a model: what it is a chain of, such as the layers of a transformer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import nn

_LISTS = (nn.ModuleList, nn.Sequential)


def parts_of(
    model: nn.Module, counts: Callable[[nn.Parameter], bool] = lambda parameter: True
) -> Iterator[tuple[str, bool]]:
    """Names of the parts of a model in its order, each with whether a list numbers it; one that holds no parameter is none.

    The entries of the outermost `ModuleList`s and `Sequential`s are parts, and so is what stands beside those lists.

    Args:
        counts: which parameters are looked at.

    >>> model = nn.ModuleDict({"words": nn.Embedding(5, 2), "layers": nn.ModuleList([nn.Linear(2, 2), nn.ReLU()])})
    >>> list(parts_of(model))
    [('words', False), ('layers.0', True)]
    """
    return _parts(model, "", counts)


def repeated_blocks(model: nn.Module, numbered_only: bool = False) -> dict[str, nn.Module]:
    """The numbered parts of a model by name, or its children where no list numbers any (or nothing then); each module once.

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
