"""Training and eval modes of a model's modules: from one update to the next, and temporarily another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter

from torch import nn

_TRAINING = attrgetter("training")


class Modes:
    """The mode of each module at the last update. A model that somebody has put in eval mode since goes back to it.

    >>> model = nn.Sequential(nn.Dropout(), nn.Dropout())
    >>> _ = model[0].eval()
    >>> modes = Modes(model)
    >>> _ = model.eval()
    >>> modes.resume()
    >>> [module.training for module in model]
    [False, True]
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules = list(model.modules())
        self._training: list[bool] = []
        self.note()

    def note(self) -> None:
        """Take the modes as those of an update from now on."""
        self._training = list(map(_TRAINING, self._modules))

    def resume(self) -> None:
        """Bring back the modes of the last update where the model as a whole is in eval mode."""
        if self._model.training:
            return
        self._model.train()  # modules that have been put in since too
        for module, training in zip(self._modules, self._training, strict=True):
            module.training = training


@contextmanager
def preserved_modes(model: nn.Module) -> Iterator[None]:
    """Give back the mode, training or evaluation, of each module on exit."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Temporarily put the model in eval mode; on exit each module is in the mode it was in."""
    with preserved_modes(model):
        model.eval()
        yield
