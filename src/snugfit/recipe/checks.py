"""The checks of a recipe that no single setting allows: files that are here, combinations, and names that other parts know.

Those of files come first: they need none of the libraries that train.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from snugfit.data.named_sources import Sources
from snugfit.data.sources import RowSource, check_columns, read_beginning
from snugfit.errors import DataError, PlanConflict, SettingError, nearest
from snugfit.models.folders import CONFIG_PREFIX, most_tokens
from snugfit.planner.choice.goals import check_goal
from snugfit.recipe import declarations as m
from snugfit.recipe.strict_yaml import Keys, Places
from snugfit.results.run_folder import check_name
from snugfit.system.user_objects import is_python_path
from snugfit.tasks import find
from snugfit.tasks.data_section import Data
from snugfit.units import parse_bytes

_OF_FILES = ("pictures", "sounds", "masks")
"""Kinds of models whose rows may be a folder of files."""


RowsHere = Literal["all", "present", "unseen"]
"""Which files of rows are looked at: all, which have to be there, those that are there, or none."""


def check_rows(recipe: m.Recipe, places: Places, which: RowsHere) -> None:
    """See that files of rows are there, are of a kind that is read, and have the columns that the task cannot do without.

    What only all rows can tell is left to the reading of them; so are data sets of Hugging Face, shards and functions.

    Raises:
        DataError, SettingError: one is not there or cannot be used; names the recipe's line.
    """
    card = find(recipe.task)
    if card.own_code or is_python_path(recipe.task) or which == "unseen":
        return  # a task of the user's own reads what it likes
    held_out = recipe.data.held_out
    sources: dict[str, RowSource] = {"data.train": recipe.data.rows}
    if isinstance(held_out, (str, Sources)):
        sources["data.validation"] = held_out
    try:
        for setting, source in sources.items():
            files = source.files if isinstance(source, Sources) else (str(source),)
            if card.model in _OF_FILES and any(map(os.path.exists, files)):
                continue
            if which == "present" and not all(map(os.path.exists, files)):
                continue
            table = read_beginning(source, setting=setting, folder=recipe.folder)
            if table is not None and (table.rows or table.parts):
                check_columns(table, {f"data.{name}": _columns(recipe.data, name) for name in card.columns})
    except (DataError, SettingError) as error:
        raise error.about(places.name(tuple(error.setting.split(".")))) from error


def check_length(recipe: m.Recipe, places: Places) -> None:
    """See that the model reads `data.max_length` tokens, where its files are here and say how many it can.

    Raises:
        SettingError: it reads fewer.
    """
    if "max_length" not in find(recipe.task).settings:
        return
    length, limit = (
        recipe.data.max_length,
        most_tokens(recipe.model.removeprefix(CONFIG_PREFIX), recipe.folder),
    )
    if limit is not None and length > limit:
        raise places.error(
            ("data", "max_length"),
            f"{length} is more than the {limit} tokens that this model can read",
            "Lower it.",
        )


def _columns(data: Data, name: str) -> tuple[str, ...]:
    """Return the columns that a setting names, whether it is written as one or as a list of them."""
    written = getattr(data, name)
    if written is None:
        return ()
    return (written,) if isinstance(written, str) else tuple(written)


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
