"""A task's product of a recipe: model, data and loss, and what the run's folder has to remember of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from snugfit.core.loss_terms import Loss
    from snugfit.data.bad_rows import Fault
    from snugfit.step.build import Material
    from snugfit.tasks.task_recipe import TaskRecipe


ModelObserver = Callable[["nn.Module", int, Path], tuple[str, Mapping[str, Any]]]
"""From the model that is scored after an update, the number of that update and the run's folder to an event: its kind and what it tells."""


@dataclass(frozen=True)
class Task:
    """Material of a run, and what its folder has to remember of it.

    `meta` goes into the bundle with the best model; `data` is the summary that a run's events carry; `sources` are digests of the
    files that the model, its tokenizer and other models it learns from are read from; `processor` says in transformers' own words how pictures are made for the model; `settings` are further JSON files by their paths in the folder, in which other libraries
    look for how it is used; `example` is one to train on as the model reads it: parts
    of text, each with whether it is scored; `asked` are rows to be answered with the tokens of the answers that they have, where a model is asked while it trains; `delivered` is the part of the model that is saved as the best one; `left_out` are the rows that
    cannot be used; `observers` tell what the model is and says at each evaluation.
    """

    material: Material
    meta: Mapping[str, Any]
    data: Mapping[str, Any]
    fingerprints: Mapping[str, str]
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    messages: tuple[str, ...] = ()
    tokenizer: Any = None
    processor: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    example_rows: list[dict[str, Any]] = field(default_factory=list)
    asked: Sequence[tuple[dict[str, Any], Sequence[int]]] = ()
    example: list[list[Any]] = field(default_factory=list)
    delivered: Callable[[nn.Module], nn.Module] = lambda model: model
    left_out: tuple[Fault, ...] = ()
    observers: tuple[ModelObserver, ...] = ()

    @property
    def class_counts(self) -> dict[str, int] | None:
        """Rows to train on by class, in the order of the labels; None where rows have none."""
        counts, names = self.data.get("labels"), self.meta.get("labels")
        return {name: counts.get(name, 0) for name in names} if counts and names else None

    def save_best(
        self, folder: Path, model: nn.Module, description: Mapping[str, Any], *, trained: nn.Module
    ) -> None:
        """Write the model as it is now, with what is needed to use it."""
        from snugfit.models.bundle import save_bundle
        from snugfit.models.folders import PROCESSOR

        settings = {**self.settings, **({} if self.processor is None else {PROCESSOR: self.processor})}
        meta = {**self.meta, **description}
        save_bundle(
            folder, self.delivered(model), meta, self.tokenizer, adapters_of=trained, settings=settings
        )


def loss_of(recipe: TaskRecipe) -> str | Loss:
    """Return the recipe's loss: the name of a built-in one, or the user's own, with the recipe's weights of its terms.

    Raises:
        SettingError: it cannot be imported.
    """
    from snugfit.core.losses import LOSSES

    return (
        recipe.loss if recipe.loss in LOSSES else named_loss(recipe.loss, recipe.loss_weights, recipe.folder)
    )


def named_loss(name: str, weights: Mapping[str, float] | None, folder: Path) -> Loss:
    """Return the loss of a name, a built-in one or the user's own, with the weights of its terms.

    Raises:
        SettingError: it cannot be imported.
    """
    from snugfit.core.loss_terms import Weighted
    from snugfit.core.losses import LOSSES
    from snugfit.system.user_objects import load_object

    if name in LOSSES:
        return LOSSES[name]
    loss: Loss = load_object(name, setting="loss", folder=folder)
    return Weighted(loss, dict(weights)) if weights else loss
