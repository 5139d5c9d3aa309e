"""The learning-rate range test on recipes, and on models in Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from torch import nn

from snugfit.core.job import AUTO
from snugfit.core.schedule import Schedule
from snugfit.core.technique import Technique, as_settings
from snugfit.errors import SettingError
from snugfit.results.shown import Shown
from snugfit.results.tool_results import keep, new_folder
from snugfit.run.train_settings import TrainSettings, by_keywords, takes_settings
from snugfit.step.find_micro_batch import find_micro_batch
from snugfit.step.step import Step
from snugfit.system.rounding import deterministic
from snugfit.tools.find_lr.lr_rules import RateReading, Suggestion
from snugfit.tools.find_lr.measure import END, SMOOTHING, START, UPDATES, RangeTest, parts_of, unit_of
from snugfit.tools.find_lr.measure import find_lr as range_test
from snugfit.tools.find_lr.page import render_lr_page, write_lr_page
from snugfit.tools.setup import Setup, module_setup, output_of, recipe_setup

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

_TOOL = "find_lr"
_MESSAGES = 10  # times, over a test


@dataclass(frozen=True, repr=False)
class FoundRate(Shown):
    """The result of range tests: `test` of the whole model, and those of its `parts` by name, where they were asked for.

    `settings` are the optimizer's rates as they are recommended, in two digits; none for an optimizer of torch.
    """

    name: str
    test: RangeTest
    parts: Mapping[str, RangeTest] = field(default_factory=dict)
    settings: Mapping[str, float] = field(default_factory=dict)
    identity: Mapping[str, Any] = field(default_factory=dict)

    @property
    def learning_rate(self) -> float | None:
        """The recommended rate; None where none can be said or relied on, as `test.verdict` explains."""
        return self.test.learning_rate

    @property
    def suggestions(self) -> Mapping[str, Suggestion]:
        """The suggestions, by the rule's name."""
        return self.test.suggestions

    @property
    def curve(self) -> tuple[RateReading, ...]:
        """Rate, loss and smoothed loss of each update."""
        return self.test.curve

    def summary_lines(self) -> list[str]:
        """Return the verdict, what each rule suggests, and the parts' rates."""
        rates: list[tuple[str, float | None]] = [
            (rule, each.learning_rate) for rule, each in self.suggestions.items()
        ]
        rates += [(part, test.learning_rate) for part, test in self.parts.items()]
        lines = [f"  {name:<12} {'none' if rate is None else f'{rate:.2g}'}" for name, rate in rates]
        return [
            f"FoundRate: {self.test.verdict}",
            *lines,
            "  then         .learning_rate, .curve, .save(folder)",
        ]

    def page(self) -> str:
        return render_lr_page(self.name, self.test, self.parts, self.settings)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        parts = {name: test.as_dict() for name, test in self.parts.items()}
        return {**self.test.as_dict(), "settings": dict(self.settings), "parts": parts}

    def save(self, folder: str | Path) -> Path:
        """Write `found.json` and a page into a folder, made where it is not there; returns the page.

        Raises:
            RunFolderError: they cannot be written.
        """
        folder = Path(folder)
        keep(folder, _TOOL, self.identity, self.test.verdict, self.as_dict())
        return write_lr_page(self.name, self.test, self.parts, self.settings, folder)


@takes_settings
def find_lr(
    model: nn.Module,
    data: Any,
    *,
    start: float = START,
    end: float = END,
    range_updates: int = UPDATES,
    smoothing: float = SMOOTHING,
    per_group: bool = False,
    **settings: Unpack[TrainSettings],
) -> FoundRate:
    """Raise the learning rate from update to update on a copy of `model`, and say which rates are good.

    Args:
        start, end: rates of the first and the last update.
        range_updates: of each test.
        smoothing: part of the average of the losses that stays with each update, in [0, 1).
        per_group: also test each part of the model with a rate of its own, while the others stand still.
        settings: as of `snugfit.train`.
    Raises:
        UserError: a setting or the data cannot be used.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> rows = [(torch.randn(4) + 2 * (number % 2), number % 2) for number in range(128)]
    >>> import snugfit as sf
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> result = find_lr(model, rows, optimizer=sf.SGD(learning_rate=0.1), start=1e-4, end=100)
    >>> sorted(result.suggestions), 1e-3 < result.learning_rate < 10
    (['minimum', 'steepest', 'valley'], True)
    """
    setup = module_setup(model, data, **settings)
    ranged = {"start": start, "end": end, "updates": range_updates, "smoothing": smoothing}
    with by_keywords({"updates": "range_updates"}):
        return _run_tests(setup, ranged, per_group, lambda _: None)


def find_lr_recipe(
    recipe: Recipe,
    *,
    start: float = START,
    end: float = END,
    updates: int = UPDATES,
    smoothing: float = SMOOTHING,
    per_group: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[FoundRate, Path]:
    """Return the range test of what a recipe trains; the result is kept beside its runs, with a page.

    Returns:
        What was found, and its page.
    Raises:
        UserError: the recipe, its data or its model cannot be used.
    """
    setup, task = recipe_setup(recipe)
    for message in task.messages:
        tell(message)
    ranged = {"start": start, "end": end, "updates": updates, "smoothing": smoothing}
    result = _run_tests(setup, ranged, per_group, tell)
    return result, result.save(new_folder(output_of(recipe), recipe.name, _TOOL))


def _run_tests(
    setup: Setup, ranged: Mapping[str, Any], per_group: bool, tell: Callable[[str], None]
) -> FoundRate:
    step = setup.step()
    if setup.plan.micro_batch == AUTO:
        with deterministic(setup.plan.deterministic):
            step.micro_batch = find_micro_batch(step, setup.loader().worst_window()[0]).micro_batch
    parts = list(parts_of(step.optimizer)) if per_group else []
    if per_group and len(parts) < 2:
        raise SettingError(
            "per_group",
            f"the optimizer has one part, '{parts[0]}'",
            "Give parts of the model rates of their own, as layer_rates and pattern_rates do, or leave it out.",
        )
    whole = _tested(setup, step, ranged, None, tell)
    alone = {part: _tested(setup, step, ranged, part, tell) for part in parts}
    return FoundRate(setup.name, whole, alone, _settings(setup, step, whole.learning_rate), setup.identity)


def _tested(
    setup: Setup, step: Step, ranged: Mapping[str, Any], part: str | None, tell: Callable[[str], None]
) -> RangeTest:
    every = max(1, ranged["updates"] // _MESSAGES)
    name = "" if part is None else f"{part}: "

    def tell_reading(number: int, reading: RateReading) -> None:
        if number % every == 0:
            tell(f"{name}update {number + 1}, rate {reading.learning_rate:.2g}, loss {reading.loss:.4g}")

    epochs = setup.loader().windows(0, sys.maxsize)  # one after the other
    with closing(epochs) as windows, deterministic(setup.plan.deterministic):
        return range_test(step, windows, **ranged, part=part, tell=tell_reading)


def _settings(setup: Setup, step: Step, rate: float | None) -> dict[str, float]:
    """Return all rates of the optimizer's settings, each as many times as high as the recommended one is."""
    optimizers = [each for each in setup.techniques if "optimizer" in each.card.seams]
    if rate is None or not optimizers:
        return {}
    factor = rate / (unit_of(step.optimizer) * _peak(step, setup.techniques))
    given = as_settings(optimizers[0])
    return {name: float(f"{given[name] * factor:.2g}") for name in rate_settings(optimizers[0])}


def rate_settings(optimizer: Technique) -> list[str]:
    """Return the names of the settings that are rates, of which `learning_rate` is one."""
    return [
        name for name in as_settings(optimizer) if name == "learning_rate" or name.endswith("_learning_rate")
    ]


def _peak(step: Step, techniques: tuple[Technique, ...]) -> float:
    """Return the schedule's highest factor: 1, but for those without which the optimizer's rate has no meaning, such as noam."""
    schedule = step.seams.schedule
    if schedule is None or not any(isinstance(each, Schedule) and each.sets_scale() for each in techniques):
        return 1.0
    group = step.optimizer.param_groups[0]
    return max(schedule(updates, group).factor for updates in range(step.total_updates or 1))
