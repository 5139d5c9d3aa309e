"""A recipe as plain values, as a file, as a hash, and as a JSON schema."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import yaml

from snugfit.core.entry import as_entry
from snugfit.recipe import model as m
from snugfit.recipe.entries import SEAMS_OF_THEIR_OWN, inner, known, of_kind, precisions, settings_of
from snugfit.recipe.presets import presets
from snugfit.recipe.source import Dumper
from snugfit.system.redaction import redacted

if TYPE_CHECKING:
    from snugfit.core.technique import Technique

_HEADER = """\
# {name}: {task} with {model}
# Train it:     snugfit train THIS_FILE [train.epochs=1 …]
# All settings: snugfit schema
"""
_NOT_LEARNED = (
    "name",
    "preset",  # what it stands for is written out
    "folder",
    "output",
    "track",
    "checkpoint",
    "budget",
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
)
"""What may differ between two runs whose updates are the same."""


def as_dict(recipe: m.Recipe) -> dict[str, Any]:
    """All settings that the recipe's task uses, as plain values."""
    values = recipe.model_dump(
        mode="json",
        exclude={"optimizer": True, "schedule": True, "techniques": True, "plan": {"numerics": True}},
    )
    values["optimizer"] = as_entry(recipe.optimizer)
    values["schedule"] = None if recipe.schedule is None else as_entry(recipe.schedule)
    values["techniques"] = [as_entry(technique) for technique in recipe.techniques]
    plan = {**values["plan"], "numerics": numerics_entry(recipe)}
    values["plan"] = {key: plan[key] for key in m.PlanSettings.model_fields}
    for section, key in m.UNUSED[recipe.task]:
        del values[section][key]
    plain: dict[str, Any] = json.loads(json.dumps({key: values[key] for key in m.Recipe.model_fields}))
    without_secrets: dict[str, Any] = redacted(plain)
    return without_secrets


def numerics_entry(recipe: m.Recipe) -> Any:
    """`plan.numerics` as it is written: a name, with its settings where it has any."""
    if recipe.plan.numerics is None or isinstance(recipe.plan.numerics, str):
        return recipe.plan.numerics
    ((name, settings),) = as_entry(recipe.plan.numerics).items()
    return {name: settings} if settings else name


def to_yaml(recipe: m.Recipe, defaults: bool = True) -> str:
    """The recipe as a commented file; without `defaults`, only what differs from them."""
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
        entry
        for technique, entry in zip(recipe.techniques, values["techniques"], strict=True)
        if technique.card.family is not Family.PLACEMENT
    ]
    for setting in _NOT_LEARNED:
        *section, key = setting.split(".")
        del (values[section[0]] if section else values)[key]
    text = json.dumps(values, sort_keys=True, ensure_ascii=True)
    settings: dict[str, Any] = json.loads(text.replace(json.dumps(f"{recipe.folder}/")[1:-1], ""))
    return settings


def _bare(recipe: m.Recipe) -> dict[str, Any]:
    """The recipe that gives only what has to be given, as plain values; what has to be given is left out."""
    from snugfit.recipe.parse import build
    from snugfit.recipe.source import Places

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


def json_schema() -> dict[str, Any]:
    """A JSON schema of recipes for editors; techniques and their settings are those that are installed.

    In a recipe: `# yaml-language-server: $schema=snugfit.schema.json`.
    """
    from snugfit.techniques import discover

    schema = m.Recipe.model_json_schema()
    properties = schema["properties"]
    definitions = schema.setdefault("$defs", {})
    for seam in SEAMS_OF_THEIR_OWN:
        properties[seam] |= {"anyOf": _entries(known(seam), definitions)}
    properties["schedule"]["anyOf"].append({"type": "null"})
    properties["techniques"] |= {"type": "array", "items": {"anyOf": _entries(known(None), definitions)}}
    for definition, key in (("Data", "text"), ("Evaluate", "metrics")):
        words = definitions[definition]["properties"][key]
        one = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
        definitions[definition]["properties"][key] = {"description": words["description"], **one}
    properties["preset"]["enum"] = list(presets())
    numerics = {name: found for name, found in discover().items() if found.card.precision}
    names, whole = _entries(numerics, definitions)
    names["enum"] = list(precisions())
    definitions["PlanSettings"]["properties"]["numerics"] |= {"anyOf": [names, whole, {"type": "null"}]}
    # an empty section is written `train:` with nothing after it only by mistake, so null is not allowed here either
    schema["required"] = ["task", "model", "data"]
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Snugfit recipe"}
    return {**dialect, **{key: value for key, value in _without_titles(schema).items() if key not in dialect}}


def _entries(techniques: Mapping[str, type[Technique]], definitions: dict[str, Any]) -> list[dict[str, Any]]:
    """What `_forms` says, with the definitions that it refers to."""
    for name, technique in techniques.items():
        definitions[name] = {"description": technique.card.summary, **_settings_schema(technique)}
    return _forms(techniques)


def _forms(techniques: Mapping[str, type[Technique]]) -> list[dict[str, Any]]:
    """A name alone, or a name with settings."""
    names: dict[str, Any] = {"enum": list(techniques)}
    whole: dict[str, Any] = {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
        "properties": {name: {"$ref": f"#/$defs/{name}"} for name in techniques},
    }
    return [names, whole]


def _value_schema(annotation: Any) -> dict[str, Any]:
    from pydantic import TypeAdapter

    holds = inner(annotation)
    if holds is None:
        return TypeAdapter(annotation).json_schema()
    kind, container = holds
    entry = {"anyOf": _forms(of_kind(kind))}
    if container is tuple:
        return {"type": "array", "items": entry}
    return {"type": "object", "additionalProperties": entry} if container is Mapping else entry


def _settings_schema(technique: type[Technique]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required = []
    for name, (annotation, default) in settings_of(technique).items():
        properties[name] = _value_schema(annotation)
        if default is dataclasses.MISSING:
            required.append(name)
        else:
            properties[name]["default"] = default
    return {
        "type": ["object", "null"],
        "properties": properties,
        "additionalProperties": False,
        **({"required": required} if required else {}),
    }


def _without_titles(node: Any) -> Any:
    """pydantic titles every property with its own name, which editors show above the description."""
    if isinstance(node, dict):
        return {
            key: _without_titles(value)
            for key, value in node.items()
            if key != "title" or isinstance(value, dict)
        }
    return [_without_titles(entry) for entry in node] if isinstance(node, list) else node
