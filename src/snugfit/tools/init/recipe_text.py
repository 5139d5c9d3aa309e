"""A recipe as a commented file."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from snugfit.core.settings import Section, Setting
from snugfit.recipe import Recipe
from snugfit.recipe.strict_yaml import Dumper

SCHEMA = "snugfit.schema.json"
_WIDTH = 110
_SILENT = {"name", "task"}
"""Settings that say themselves what they are."""
_TOGETHER = {"from_scratch", "schedule", "techniques"}
"""Settings that follow what they belong to without an empty line."""


def commented(tree: Mapping[str, Any], header: Sequence[str], comments: Mapping[str, str]) -> str:
    """Return settings as YAML, each with what it means.

    Args:
        header: sentences on top.
        comments: what is said of settings, by their whole names, in place of what they mean in general.
    """
    lines = [f"# yaml-language-server: $schema={SCHEMA}"]
    for sentence in header:
        lines += textwrap.wrap(sentence, _WIDTH - 2, initial_indent="# ", subsequent_indent="# ")
    lines += ["# Every setting: snugfit recipe; one of them: snugfit recipe KEY."]
    declared = Recipe.settings()
    for name, value in tree.items():
        section = declared[name].section
        if section is not None and isinstance(value, Mapping):
            lines += ["", f"{name}:", *_settings(value, section, name, comments)]
        elif name in _SILENT:
            lines.append(f"{name}: {_plain(value)}")
        else:
            lines += [
                *([] if name in _TOGETHER else [""]),
                *_setting(declared[name], name, value, "", comments),
            ]
    return "\n".join(lines) + "\n"


def _settings(
    values: Mapping[str, Any], section: type[Section], prefix: str, comments: Mapping[str, str]
) -> Iterator[str]:
    declared = section.settings()
    for name, value in values.items():
        yield from _setting(declared[name], f"{prefix}.{name}", value, "  ", comments)


def _setting(
    setting: Setting, key: str, value: Any, indent: str, comments: Mapping[str, str]
) -> Iterator[str]:
    """Yield a setting with its comment: behind it where there is room, else above."""
    comment = comments.get(key, setting.meaning)
    line = f"{indent}{setting.name}: {_plain(value)}"
    whole = f"{line}  # {comment}"
    if not comment:
        yield line
    elif len(whole) <= _WIDTH:
        yield whole
    else:
        yield from textwrap.wrap(
            comment, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
        )
        yield line


def _plain(value: Any) -> str:
    """Return a value on one line of YAML."""
    if isinstance(value, tuple):
        value = list(value)
    text: str = yaml.dump(
        value, Dumper=Dumper, default_flow_style=True, sort_keys=False, width=10**6, allow_unicode=True
    )
    return text.strip().removesuffix("...").strip()
