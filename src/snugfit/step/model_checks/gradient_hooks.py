"""Hooks of the user's own on the gradients of a model's weights: what they see of a window that several backwards compute."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter

from torch import nn

from snugfit.errors import SettingError, SnugfitWarning

_ON_GRADIENT = attrgetter("_backward_hooks")
_BEHIND_GRADIENT = attrgetter("_post_accumulate_grad_hooks")


@dataclass
class GradientHooks:
    """The first weights that train and have a hook: on what is added to the gradient, and behind that; None where none has.

    >>> model = nn.Linear(2, 1)
    >>> _ = model.bias.register_hook(lambda gradient: gradient.clamp(-1, 1))
    >>> GradientHooks.of(model)
    GradientHooks(on='bias', behind=None)
    """

    on: str | None = None
    behind: str | None = None

    @classmethod
    def of(cls, model: nn.Module) -> GradientHooks:
        """Return those of a model as the user gave it, before anything of ours is hooked."""
        trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
        on = next((name for name, each in trained if _ON_GRADIENT(each)), None)
        return cls(on, next((name for name, each in trained if _BEHIND_GRADIENT(each)), None))

    def check_split(self, *, on_host: bool) -> None:
        """Say once that hooks on what is added see each micro-batch, as the gradient of a window comes in parts.

        Args:
            on_host: gradients are added up in host memory, and no weight has one when it is whole.
        Raises:
            SettingError: then a hook behind a gradient would have nothing to see.
        """
        if on_host and self.behind is not None:
            raise SettingError(
                "micro_batch",
                f"splits windows whose gradients are added up in host memory, and '{self.behind}' has a hook by "
                "register_post_accumulate_grad_hook, which would see a part of one",
                "Take windows whole, or keep gradients on the device.",
            )
        if self.on is not None:
            warnings.warn(
                f"the hook on the gradient of '{self.on}' is called by each micro-batch on its part: one that is not linear, such as "
                "clamp, makes another gradient of them. For that take clip_value or clip_norm, which see the whole.",
                SnugfitWarning,
                stacklevel=2,
            )
            self.on = None

    def check_sharded(self) -> None:
        """Refuse a model that is to be sharded: other parameters take the place of those with hooks.

        Raises:
            SettingError: one has a hook.
        """
        name = self.on or self.behind
        if name is not None:
            raise SettingError(
                "strategy",
                f"shards the model, and '{name}' has a hook on its gradient, which would no longer be called",
                "Copy the model to each device (ddp), or replace the hook by a technique such as clip_value.",
            )


class HooksBehind:
    """Hooks by `register_post_accumulate_grad_hook`, which are called once, on the gradient of a window, where several backwards add it up.

    >>> import torch
    >>> weight = nn.Parameter(torch.ones(()))
    >>> _ = weight.register_post_accumulate_grad_hook(lambda each: print(each.grad))
    >>> hooks = HooksBehind([weight])
    >>> with hooks.held_back():
    ...     for _ in range(2):
    ...         (3 * weight).backward()
    >>> hooks.call(weight)
    tensor(6.)
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = [each for each in parameters if _BEHIND_GRADIENT(each)]
        self._held: dict[nn.Parameter, dict[int, Callable[[nn.Parameter], None]]] = {}

    @property
    def there(self) -> bool:
        """Return whether there are any."""
        return bool(self._parameters)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Temporarily have backwards call none of them."""
        self._held = {each: dict(_BEHIND_GRADIENT(each)) for each in self._parameters}
        for each in self._held:
            _BEHIND_GRADIENT(each).clear()
        try:
            yield
        finally:
            for each, hooks in self._held.items():
                _BEHIND_GRADIENT(each).update(hooks)
            self._held = {}

    def call(self, parameter: nn.Parameter) -> None:
        """Call those of a parameter, whose gradient is whole; also while they are held back."""
        # while they are held back, those that are there are the step's
        hooks = self._held.get(parameter, {}) if self._held else _BEHIND_GRADIENT(parameter)
        for hook in list(hooks.values()):  # one may remove itself
            hook(parameter)

    def call_all(self) -> None:
        """Call those of each parameter that has a gradient."""
        for parameter in self._parameters:
            if parameter.grad is not None:
                self.call(parameter)
