"""The checks of a recipe that no single setting allows: combinations, and names that other parts know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from snugfit.data.named_sources import Sources
from snugfit.errors import PlanConflict, SettingError, nearest
from snugfit.planner.choice.goals import check_goal
from snugfit.recipe import declarations as m
from snugfit.recipe.strict_yaml import Keys, Places
from snugfit.results.run_folder import check_name
from snugfit.system.user_objects import is_python_path
from snugfit.tasks import find
from snugfit.units import parse_bytes


def check_recipe(recipe: m.Recipe, given: Mapping[str, Any], places: Places) -> None:
    """Check what no single setting says: combinations, and names that other parts know."""
    from snugfit.core.selection import check

    for keys in m.unused(recipe.task):
        if keys[1] in (given.get(keys[0]) or {}):
            raise places.error(keys, f"is not used by task {recipe.task}", "Remove it.")
    _check_names(recipe, places)
    micro_batch, window = recipe.plan.micro_batch, recipe.train.most_examples
    if isinstance(micro_batch, int) and window is not None and micro_batch > window:
        raise places.error(
            ("plan", "micro_batch"),
            f"{micro_batch} is more than train.global_batch, which is {window}",
            "Lower it, or write null.",
        )
    sizes = {
        ("budget", "memory"): recipe.budget.memory,
        ("budget", "host_memory"): recipe.budget.host_memory,
        ("data", "picture_cache"): recipe.data.picture_cache,
        ("data", "feature_cache"): recipe.data.feature_cache,
    }
    for keys, size in sizes.items():
        with placed(places, keys):
            setting = ".".join(keys)
            if size is not None and parse_bytes(size, setting) <= 0:
                raise SettingError(setting, f"must be positive, found {size}", "Give a size above 0.")
    with placed(places, ("plan", "price")):
        check_goal(recipe.plan.goal, recipe.plan.price)
    _check_early_stopping(recipe, places)
    _check_loss_and_metrics(recipe, places)
    try:
        check(recipe.all_techniques())
    except PlanConflict as conflict:
        place = places.of(("techniques",))
        raise conflict.about(place or conflict.setting) from conflict


def _check_early_stopping(recipe: m.Recipe, places: Places) -> None:
    rule = recipe.early_stopping
    if rule is None:
        return
    if recipe.data.validation is None:
        raise places.error(
            ("early_stopping",), "needs data.validation, which is null", "Give a fraction or a file."
        )
    if isinstance(rule.stop_when, str) and not is_python_path(rule.stop_when):
        raise places.error(
            ("early_stopping", "stop_when"),
            f"must be package.module:function, found '{rule.stop_when}'",
            "Write it so.",
        )


def _check_names(recipe: m.Recipe, places: Places) -> None:
    with placed(places, ("name",)):
        check_name(recipe.name)
    try:
        read = {"train": recipe.data.rows, "validation": recipe.data.held_out}
    except SettingError as error:
        raise error.about(places.name(tuple(error.setting.split(".")))) from error
    for name, source in read.items():
        if isinstance(source, Sources) and "stopping_strategy" not in find(recipe.task).settings:
            raise places.error(
                ("data", name),
                f"names several sources, and task {recipe.task} reads one",
                "Name one, or join their rows.",
            )
    sources = [(("data", "train"), name) for name in recipe.data.train_sources]
    for keys, text in ((("model",), recipe.model), *sources):
        if not text.strip():
            raise places.error(keys, "is empty", "Fill it in.")
        if find(recipe.task).own_code and not is_python_path(text):
            raise places.error(
                keys,
                f"must be package.module:function for task {recipe.task}, found '{text}'",
                "Write it so.",
            )


def _check_loss_and_metrics(recipe: m.Recipe, places: Places) -> None:
    from snugfit.core.losses import LOSSES
    from snugfit.step.metrics.metric import check_metrics, check_watched, metric_name, monitored

    card = find(recipe.task)
    known = tuple(dict.fromkeys((*(card.losses or LOSSES), card.loss)))
    if recipe.loss not in known and not is_python_path(recipe.loss):
        raise places.error(
            ("loss",),
            f"'{recipe.loss}' is no built-in loss of task {recipe.task} and no package.module:function",
            nearest(recipe.loss, known),
        )
    if recipe.loss_weights is not None and (recipe.loss in known or card.losses):
        raise places.error(
            ("loss_weights",),
            f"gives weights to {', '.join(recipe.loss_weights) or 'nothing'}, and the loss '{recipe.loss}' has no terms by name",
            "Give a loss of your own that returns some, or remove loss_weights.",
        )
    with placed(places, ("evaluate", "metrics")):
        check_metrics(metric for metric in recipe.evaluate.metrics if not is_python_path(metric))
        names = Counter(map(metric_name, recipe.evaluate.metrics))
        if twice := [name for name, count in names.items() if count > 1]:
            raise places.error(
                ("evaluate", "metrics"), f"has two of the name '{twice[0]}'", "Give one another name."
            )
    with placed(places, ("evaluate", "best")):
        monitored(recipe.evaluate.best, recipe.evaluate.metrics)
    with placed(places, ("evaluate", "metrics")):
        validated = recipe.data.validation is not None
        check_watched(recipe.all_techniques(), recipe.evaluate.metrics, validated)


@contextmanager
def placed(places: Places, keys: Keys) -> Iterator[None]:
    """Add the place to an error that names its setting already."""
    try:
        yield
    except SettingError as error:
        inner = error.setting
        name = places.name(keys)
        raise error.about(name if inner == ".".join(keys) else f"{name}: {inner}") from error
