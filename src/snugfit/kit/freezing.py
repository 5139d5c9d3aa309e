"""Freezing: the blocks of a model, which parameters train now, and which normalisation layers keep their statistics."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from snugfit.core.layers import parts_of
from snugfit.kit.module_patterns import around


def frozen_norms(model: nn.Module, frozen: Collection[str]) -> list[nn.Module]:
    """Normalisation layers with running statistics whose parameters are among these names.

    One without parameters goes with the module around it, when all of that is frozen.
    """
    norms = []
    owned: dict[str, set[str]] = {"": {name for name, _ in model.named_parameters()}}
    for name, _ in model.named_parameters():
        for place in list(around(name))[1:]:
            owned.setdefault(place, set()).add(name)
    for name, module in model.named_modules():
        if getattr(module, "running_mean", None) is None:
            continue
        holder = next((place for place in around(name) if place in owned), "")
        own = owned[holder]
        if own & set(frozen) if holder == name else own <= set(frozen):
            norms.append(module)
    return norms


def blocks_of(model: nn.Module) -> list[list[str]]:
    """Return names of the parameters that train, by block, from the inputs to the head.

    Blocks are the entries of the outermost `ModuleList`s and `Sequential`s; what stands before, between or after them is
    a block of its own, the last one the head. A model without any is cut into its children. A shared weight belongs to
    the block nearest to the head, a parameter outside all modules to the first.

    >>> model = nn.ModuleDict({
    ...     "words": nn.Embedding(5, 2), "layers": nn.ModuleList([nn.Linear(2, 2, False), nn.Linear(2, 2, False)]),
    ...     "norm": nn.LayerNorm(2, bias=False), "head": nn.Linear(2, 5, False)})
    >>> for block in blocks_of(model):
    ...     print(block)
    ['words.weight']
    ['layers.0.weight']
    ['layers.1.weight']
    ['norm.weight', 'head.weight']
    """
    units = list(parts_of(model, lambda parameter: parameter.requires_grad))
    whole: list[list[str]] = []
    joins = any(numbered for _, numbered in units)
    for place, (name, numbered) in enumerate(units):
        if joins and place > 0 and not numbered and not units[place - 1][1]:
            whole[-1].append(name)
        else:
            whole.append([name])
    first: dict[int, str] = {}
    block_of: dict[str, int] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            own = first.setdefault(id(parameter), name)
            inside = [
                n for n, block in enumerate(whole) if any(name.startswith(f"{each}.") for each in block)
            ]
            block_of[own] = max(block_of.get(own, 0), *inside, 0)
    return [[name for name, block in block_of.items() if block == n] for n in range(len(whole) or 1)]


class Switches:
    """Switches parameters off and on again, and the statistics of normalisation layers with them.

    What it finds switched off, by `requires_grad` or by eval mode, is somebody else's and stays so.

    Args:
        frozen: names of all the parameters that will ever be switched off.
        norms: whether frozen normalisation layers are put in eval mode, so that their statistics stay.
    """

    def __init__(self, model: nn.Module, frozen: Collection[str], norms: bool = True) -> None:
        self._model = model
        self._parameters = [(n, p) for n, p in model.named_parameters() if n in frozen and p.requires_grad]
        self._norms = frozen_norms(model, frozen) if norms else []
        self._in_eval: set[nn.Module] = set()

    def freeze(self, frozen: Collection[str]) -> None:
        """Let these train no more from now on, and all others train."""
        for name, parameter in self._parameters:
            parameter.requires_grad_(name not in frozen)
        still = {id(norm) for norm in frozen_norms(self._model, frozen)} if self._norms else set()
        for norm in self._norms:
            if id(norm) not in still:
                norm.training = norm.training or norm in self._in_eval
                self._in_eval.discard(norm)
            elif norm.training:
                norm.training = False
                self._in_eval.add(norm)
