"""Hooks of the user's own on the gradients of a model's weights, which see parts of these where a window is split."""

from __future__ import annotations

import warnings
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

    def check_split(self) -> None:
        """Say once that hooks are called for each micro-batch, as the gradient of a window comes in parts.

        Raises:
            SettingError: one would change the sum of these parts each time.
        """
        if self.behind is not None:
            raise SettingError(
                "micro_batch",
                f"splits windows, and '{self.behind}' has a hook by register_post_accumulate_grad_hook, which each micro-batch "
                "would call on the sum so far",
                "Take windows whole, or replace the hook by a technique: optimizer_in_backward, clip_value, gradient_noise.",
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
