"""A recipe as tasks see it: the settings that they load model, data and loss by.

`snugfit.recipe.Recipe` has all of it, and is above the tasks, as it asks their cards what a setting may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from snugfit.core.job import Evaluate, Train
    from snugfit.core.settings import Section
    from snugfit.core.technique import Technique
    from snugfit.tasks.data_section import Data


class SharedPlan(Protocol):
    """A plan, to a task whose model cannot be spread over devices."""

    @property
    def strategy(self) -> str:
        """The way in which several devices share an update."""
        ...


class TaskRecipe(Protocol):
    """A recipe, to its task."""

    @property
    def task(self) -> str:
        """The name of the task, or the `package.module:CARD` of one of the user's own."""
        ...

    @property
    def model(self) -> str:
        """The model: a name of the hub, a folder, a file or a function, as the task reads it."""
        ...

    @property
    def from_scratch(self) -> bool:
        """True where the architecture of the model starts with new weights."""
        ...

    @property
    def data(self) -> Data:
        """The rows, and how they become examples."""
        ...

    @property
    def loss(self) -> str:
        """The name of a built-in loss, or `package.module:function`."""
        ...

    @property
    def loss_weights(self) -> Mapping[str, float] | None:
        """Factors of the terms that a loss of the user's own returns by name."""
        ...

    @property
    def preference(self) -> Section:
        """Settings of losses of preferences, by the names that those losses have for them."""
        ...

    @property
    def train(self) -> Train:
        """The length of the training, its windows and its seed."""
        ...

    @property
    def evaluate(self) -> Evaluate:
        """The metrics, and when they are measured."""
        ...

    @property
    def plan(self) -> SharedPlan:
        """The fit of the run on the machine."""
        ...

    @property
    def folder(self) -> Path:
        """The folder of the files and Python modules that the recipe names."""
        ...

    def all_techniques(self) -> tuple[Technique, ...]:
        """Return everything that fills seams."""
        ...

    def without_validation(self) -> TaskRecipe:
        """Return the recipe without `data.validation`."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """Return all settings that the task uses, as plain values."""
        ...
