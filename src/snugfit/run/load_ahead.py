"""Data and model of a run, read while another process plans it: the plan of a small model leaves both as they are most often."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from snugfit.errors import SnugfitWarning
from snugfit.models.hub import bytes_here
from snugfit.strategies.base import Strategy
from snugfit.system.memory import available_bytes
from snugfit.system.messages import held_warnings
from snugfit.system.rounding import fix_sums
from snugfit.tasks import find

if TYPE_CHECKING:
    from snugfit.recipe import Recipe
    from snugfit.tasks.task import Task

Load = Callable[[Strategy], "Task"]

_MOST_BYTES = 256 << 20
"""Of the files of data and model: what is larger waits for the plan, which may have the weights come in another format."""

_SHARE = 8
"""Times as much memory as these files have that has to be free: the planner's process needs some too."""


class LoadAhead:
    """Reads what a recipe names, once, before it is planned.

    Args:
        recipe: as it is before it is planned, in the precision that it would have without a plan.
        load: reads its data and its model.
        on_cpu: whether it will train there.
    """

    def __init__(self, recipe: Recipe, load: Load, *, on_cpu: bool) -> None:
        self._recipe, self._load, self._on_cpu = recipe, load, on_cpu
        self._task: Task | None = None
        self._messages: list[str] = []

    def begin(self) -> None:
        """Read it, where it is small and no code of the user's takes part, which would run twice at a time.

        Raises:
            UserError: the data or the model cannot be used.
        """
        if not _is_small(self._recipe):
            return
        if self._on_cpu:
            fix_sums()
        with held_warnings(self._messages):
            self._task = self._load(Strategy())

    def instead_of(self, load: Load, recipe: Recipe) -> Load:
        """Return what loads a recipe as it was planned: the first time by what was read, where the plan has changed none of that."""
        if self._task is None or _read_of(recipe) != _read_of(self._recipe):
            self._task = None
            return load

        def take(strategy: Strategy) -> Task:
            task, self._task = self._task, None
            if task is None:
                return load(strategy)
            for message in self._messages:
                warnings.warn(message, SnugfitWarning, stacklevel=2)
            return task

        return take


def _read_of(recipe: Recipe) -> tuple[Any, ...]:
    """Return all that decides what is read of a recipe; of its plan that is the precision, which the best model's folder names."""
    settings = recipe.as_dict()
    return {**settings, "plan": settings["plan"]["numerics"]}, recipe.all_techniques()


def _is_small(recipe: Recipe) -> bool:
    files = [Path(source) for source in recipe.data.sources]
    if recipe.code or recipe.from_scratch or not all(path.is_file() for path in files):
        return False
    model: int | None = 0
    if find(recipe.task).reads_model(recipe.model):
        model = bytes_here(recipe.model, recipe.folder)
    elif (recipe.folder / recipe.model).exists():  # a network of any size, by its settings
        model = None
    if model is None:
        return False
    size, free = model + sum(path.stat().st_size for path in files), available_bytes(torch.device("cpu"))
    return size <= _MOST_BYTES and (free is None or size * _SHARE <= free)
