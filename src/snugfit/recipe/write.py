"""A recipe as plain values, as a file and as a hash, and the user's code that its values name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from snugfit.core.entry import as_entry, without_unset
from snugfit.core.settings import Section
from snugfit.recipe import declarations as m
from snugfit.recipe.entries import SEAMS_OF_THEIR_OWN
from snugfit.recipe.strict_yaml import Dumper
from snugfit.system.code_consent import named_code
from snugfit.system.redaction import redacted
from snugfit.tasks import find
from snugfit.tasks.data_section import COLUMNS

_HEADER = """\
# {name}: {task} with {model}
# Train it:     snugfit train THIS_FILE [train.epochs=1 …]
# All settings: snugfit schema
"""
_UNSAID = {
    "leaks": "warn",
    "near_duplicates": False,
    "balance": None,
    "stream": None,
    "add_tokens": None,
    "documents": "joined",
    "document_separator": None,
}
"""Settings of `data` that runs of before do not know, at the values that are as they were."""

_NO_CODE = ("name", "preset", "folder", "output")
_NO_CODE_OF_DATA = (*COLUMNS, "classes")
"""Settings whose text is never imported, whatever it looks like."""

_NOT_LEARNED = (
    "name",
    "preset",  # what it stands for is written out
    "folder",
    "output",
    "track",
    "checkpoint",
    "hooks",
    "budget",
    "data.picture_cache",
    "data.feature_cache",
    "plan.micro_batch",
    "plan.device",
    "plan.devices",
    "plan.strategy",
    "plan.timeout",
    "plan.goal",
    "plan.worth",
    "plan.slower",
    "plan.price",
    "plan.num_workers",
    "plan.cut_padding",
    "plan.deterministic",
    "evaluate.batch",
    "evaluate.keep_models",
    "evaluate.keep_when",
)
"""What may differ between two runs whose updates are the same."""


def as_dict(recipe: m.Recipe) -> dict[str, Any]:
    """Return all settings that the recipe's task uses, as plain values."""
    values = {name: plain_value(getattr(recipe, name)) for name in m.Recipe.settings()}
    values["plan"]["numerics"] = numerics_entry(recipe)
    for section, key in m.unused(recipe.task):
        del values[section][key]
        if not values[section]:
            del values[section]
    without_secrets: dict[str, Any] = redacted(json.loads(json.dumps(values)))
    return without_secrets


def plain_value(value: Any) -> Any:
    """Return a setting's value as JSON has it: a section as its settings, a technique as its entry."""
    if isinstance(value, Section):
        return {name: plain_value(getattr(value, name)) for name in value.settings()}
    if isinstance(value, tuple):
        return [plain_value(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    return as_entry(value) if hasattr(value, "card") else value


def numerics_entry(recipe: m.Recipe) -> Any:
    """`plan.numerics` as it is written: a name, with its settings where it has any."""
    if recipe.plan.numerics is None or isinstance(recipe.plan.numerics, str):
        return recipe.plan.numerics
    ((name, settings),) = as_entry(recipe.plan.numerics).items()
    return {name: settings} if settings else name


def to_yaml(recipe: m.Recipe, defaults: bool = True) -> str:
    """Return the recipe as a commented file; without `defaults`, only what differs from them."""
    values = as_dict(recipe)
    if not defaults:
        values = _different(values, _bare(recipe))
    header = _HEADER.format(name=recipe.name, task=recipe.task, model=recipe.model)
    text = yaml.dump(
        values, Dumper=Dumper, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True
    )
    return f"{header}{text}"


def recipe_hash(recipe: m.Recipe) -> str:
    """sha256 of the settings that decide the updates."""
    from snugfit.system.digest import digest_of_settings  # torch, which a schema does without

    return digest_of_settings(learned_settings(recipe))


def learned_settings(recipe: m.Recipe) -> dict[str, Any]:
    """Return the settings that decide the updates; files in the recipe's folder count by their relative path."""
    from snugfit.core.technique import Family

    values = as_dict(recipe)
    values["techniques"] = [
        {name: without_unset(technique, settings)}
        for technique, entry in zip(recipe.techniques, values["techniques"], strict=True)
        if technique.card.family is not Family.PLACEMENT
        for name, settings in entry.items()
    ]
    for setting in _NOT_LEARNED:
        *section, key = setting.split(".")
        (values[section[0]] if section else values).pop(key, None)  # of a task that has no use for it
    for name in recipe.train.sizes_unset:  # which runs of before do not know
        del values["train"][name]
    if isinstance(recipe.data.rows, str):  # runs of before know no others
        values["data"].pop("stopping_strategy", None)
    for name, value in _UNSAID.items():
        if values["data"].get(name, value) == value:
            values["data"].pop(name, None)
    text = json.dumps(values, sort_keys=True, ensure_ascii=True)
    settings: dict[str, Any] = json.loads(text.replace(json.dumps(f"{recipe.folder}/")[1:-1], ""))
    return settings


def _bare(recipe: m.Recipe) -> dict[str, Any]:
    """Return the recipe that gives only what has to be given, as plain values; what has to be given is left out."""
    from snugfit.recipe.load import build
    from snugfit.recipe.strict_yaml import Places

    given = {"task": recipe.task, "model": recipe.model, "data": {"train": recipe.data.train}}
    values = as_dict(build(given, (), Places(), folder=recipe.folder, name=recipe.name))
    del values["name"], values["task"], values["model"], values["data"]["train"]
    return values


def _different(values: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    different: dict[str, Any] = {}
    for key, value in values.items():
        if key in base and value == base[key]:
            continue
        both = isinstance(value, Mapping) and isinstance(base.get(key), Mapping)
        # a technique is written whole: its settings mean nothing without its name
        different[key] = _different(value, base[key]) if both and key not in SEAMS_OF_THEIR_OWN else value
    return different


def code_of(recipe: m.Recipe) -> dict[str, str]:
    """Return the settings that name code, each with its `package.module:function`.

    Every other setting counts, so that a new one that names code needs no line here.
    """
    return _code_named_in(recipe.as_dict(), recipe)


def written_code(recipe: m.Recipe) -> dict[str, str]:
    """Return the same of a recipe whose techniques are still as they were written."""
    return _code_named_in(plain_value(recipe), recipe)


def _code_named_in(settings: Mapping[str, Any], recipe: m.Recipe) -> dict[str, str]:
    values = {key: value for key, value in settings.items() if key not in _NO_CODE}
    values["data"] = {key: value for key, value in values["data"].items() if key not in _NO_CODE_OF_DATA}
    values["track"] = values["track"]["others"]
    values["evaluate"] = {key: value for key, value in values["evaluate"].items() if key != "best"}
    if not find(recipe.task).own_code:
        del values["model"]  # a name on the hub, a folder, or `config:NAME`
    return named_code(values)
