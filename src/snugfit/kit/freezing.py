"""Freezing: which parameters train now, and which normalisation layers keep their statistics."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from snugfit.core.module_patterns import around


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
