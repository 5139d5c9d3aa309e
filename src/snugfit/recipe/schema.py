"""The JSON schema of recipes, for editors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from snugfit.core.settings import Section
from snugfit.recipe import declarations as m
from snugfit.recipe.entries import SEAMS_OF_THEIR_OWN, inner, known, of_kind, precisions, settings_of
from snugfit.recipe.presets import preset_names
from snugfit.recipe.write import plain_value
from snugfit.system.user_objects import PYTHON_PATH

if TYPE_CHECKING:
    from snugfit.core.technique import Technique


def schema_with_plugins() -> dict[str, Any]:
    """Return the schema with the names of techniques and tasks that installed packages list; none of them is imported."""
    from snugfit.tasks.plugins import TASKS
    from snugfit.techniques.plugins import TECHNIQUES

    return json_schema(TECHNIQUES.entry_points(), TASKS.entry_points())


def json_schema(listed: Iterable[str] = (), tasks: Iterable[str] = ()) -> dict[str, Any]:
    """Return a JSON schema of recipes for editors, with Snugfit's techniques and their settings.

    In a recipe: `# yaml-language-server: $schema=snugfit.schema.json`. Techniques of other packages are not imported for it: it takes any
    settings for a `package.module:Class`.

    Args:
        listed: names of techniques that other packages list, which it takes with any settings too.
        tasks: names of tasks that they list.
    """
    from snugfit.techniques import discover

    definitions: dict[str, Any] = {}
    schema = _section_schema(m.Recipe, definitions)
    properties = schema["properties"]
    for seam in SEAMS_OF_THEIR_OWN:
        properties[seam] |= {"anyOf": _entries(known(seam), definitions)}
    properties["schedule"]["anyOf"].append({"type": "null"})
    properties["techniques"] |= {"type": "array", "items": {"anyOf": _entries(known(None), definitions)}}
    names_alone = {"type": "array", "items": {"type": "string"}}
    properties["track"]["anyOf"] = [{"$ref": properties["track"].pop("$ref")}, names_alone]
    properties["preset"]["enum"] = preset_names()
    properties["task"]["anyOf"][0]["enum"] += tasks
    numerics = {name: technique for name, technique in discover().items() if technique.card.precision}
    names, whole = _entries(numerics, definitions)
    names["enum"] = list(precisions())
    definitions["PlanSettings"]["properties"]["numerics"] |= {"anyOf": [names, whole, {"type": "null"}]}
    with_others = [properties[seam] for seam in SEAMS_OF_THEIR_OWN]
    with_others += [properties["techniques"]["items"], definitions["PlanSettings"]["properties"]["numerics"]]
    for place in with_others:
        place["anyOf"] += _forms_of_others(listed)
    definitions["Data"]["properties"]["train"]["anyOf"][-1]["additionalProperties"] = _SOURCE
    # an empty section is written `train:` with nothing after it only by mistake, so null is not allowed here either
    schema["required"] = list(dict.fromkeys(key.partition(".")[0] for key in m.REQUIRED))
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Snugfit recipe"}
    return {**dialect, **schema, "$defs": definitions}


def _section_schema(section: type[Section], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return what an editor has to know of a section; sections in it are added to the definitions."""
    properties: dict[str, Any] = {}
    for name, each in section.settings().items():
        if each.section is None:
            schema = _value_schema(each.annotation)
            if schema.get("type") == "array" and "items" in schema:  # a name alone is a list of one
                schema = {"anyOf": [schema["items"], schema]}
            if each.declaration.pattern:
                schema["pattern"] = each.declaration.pattern
        else:
            definitions[each.section.__name__] = _section_schema(each.section, definitions)
            schema = {"$ref": f"#/$defs/{each.section.__name__}"}
            if each.default is None:
                schema = {"anyOf": [schema, {"type": "null"}]}
        schema["description"] = each.meaning
        if not each.required:
            schema["default"] = plain_value(each.default)
        properties[name] = schema
    return {
        "type": "object",
        "description": (section.__doc__ or "").partition("\n")[0],
        "properties": properties,
        "additionalProperties": False,
        "required": [name for name, each in section.settings().items() if each.required],
    }


def _entries(techniques: Mapping[str, type[Technique]], definitions: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what `_forms` says, with the definitions that it refers to."""
    for name, technique in techniques.items():
        definitions[name] = {"description": technique.card.summary, **_settings_schema(technique)}
    return _forms(techniques)


def _forms(techniques: Mapping[str, type[Technique]]) -> list[dict[str, Any]]:
    """Return a name alone, or a name with settings."""
    names: dict[str, Any] = {"enum": list(techniques)}
    whole: dict[str, Any] = {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
        "properties": {name: {"$ref": f"#/$defs/{name}"} for name in techniques},
    }
    return [names, whole]


def _forms_of_others(listed: Iterable[str]) -> list[dict[str, Any]]:
    """Return the name of a technique that is not Snugfit's, or that with settings."""
    pattern = "|".join([rf"^{PYTHON_PATH}$", *(f"^{name}$" for name in listed)])
    name: dict[str, Any] = {"type": "string", "pattern": pattern}
    whole: dict[str, Any] = {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
        "patternProperties": {pattern: {"type": ["object", "null"]}},
    }
    return [name, whole]


def _value_schema(annotation: Any) -> dict[str, Any]:
    holds = inner(annotation)
    if holds is None:
        return type_schema(annotation)
    kind, container = holds
    entry = {"anyOf": _forms(of_kind(kind))}
    if container is tuple:
        return {"type": "array", "items": entry}
    return {"type": "object", "additionalProperties": entry} if container is Mapping else entry


_SOURCE = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "additionalProperties": False,
            "required": ["from"],
            "properties": {
                "from": {"type": "string"},
                "weight": {"type": "number", "exclusiveMinimum": 0},
                "rename": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        },
    ]
}
"""The schema of one of several sources of rows."""

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", Path: "string", type(None): "null"}
_BOUNDS = {
    "above": "exclusiveMinimum",
    "least": "minimum",
    "below": "exclusiveMaximum",
    "entries": "minItems",
}


def type_schema(annotation: Any) -> dict[str, Any]:
    """Return the JSON schema of a type; {} of one that has none, which takes everything.

    >>> from snugfit.core.settings import Count
    >>> type_schema(Count | None)
    {'anyOf': [{'type': 'integer', 'exclusiveMinimum': 0}, {'type': 'null'}]}
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        # a function is written as `package.module:function`, which is text
        return {"anyOf": [type_schema(each) for each in arguments if get_origin(each) is not Callable]}
    if origin is Annotated:
        bounds = (
            (word, value)
            for bound in arguments[1:]
            for name, word in _BOUNDS.items()
            if (value := getattr(bound, name)) is not None and (name != "entries" or value)
        )
        patterns = [bound.pattern for bound in arguments[1:] if bound.pattern is not None]
        pattern = {"pattern": f"^{patterns[0]}$"} if patterns else {}
        return {**type_schema(arguments[0]), **dict(bounds), **pattern}
    if origin is Literal:
        return (
            {"type": "string", "const": arguments[0]}
            if len(arguments) == 1
            else {"type": "string", "enum": list(arguments)}
        )
    if origin is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": type_schema(arguments[0])}
    if origin is tuple:
        places = {"prefixItems": [type_schema(each) for each in arguments]}
        return {"type": "array", "minItems": len(arguments), "maxItems": len(arguments), **places}
    if origin in (Mapping, dict):
        return {"type": "object", "additionalProperties": type_schema(arguments[1])}
    return {"type": _TYPES[annotation]} if annotation in _TYPES else {}


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
