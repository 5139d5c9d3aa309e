"""The reference of a recipe's settings, from their declarations: on the command line, as JSON and as a page of the docs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import yaml

from snugfit.core.job import keywords
from snugfit.core.other_names import our_name
from snugfit.core.settings import Setting, shown
from snugfit.errors import SettingError, nearest
from snugfit.recipe import declarations as m
from snugfit.recipe.strict_yaml import Dumper
from snugfit.tasks import discover

_ALONE = {
    "optimizer": "snugfit techniques",
    "schedule": "snugfit techniques",
    "techniques": "snugfit techniques",
}
"""Settings that hold techniques, and the command that lists what they take."""

_TITLE = "# Recipe settings"


@dataclass(frozen=True)
class Entry:
    """A setting of a recipe, as it is shown.

    Args:
        key: its whole name, such as `train.epochs`.
        default: `...` where it has to be given, or depends on something else, which its meaning says.
        example: a recipe's lines that give it, in one line of YAML.
        keyword: its name among the arguments of `sf.train`; empty where it has none there.
        commands: that read it.
        not_for: tasks that have no use for it.
    """

    key: str
    meaning: str
    takes: str
    default: Any
    example: str
    keyword: str
    commands: tuple[str, ...]
    not_for: tuple[str, ...]

    @property
    def required(self) -> bool:
        return self.key in m.REQUIRED

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; without a default where there is none of its own."""
        values = {name: getattr(self, name) for name in type(self).__dataclass_fields__}
        values["required"] = self.required
        if self.default is ...:
            del values["default"]
        return values


def entries(key: str | None = None) -> list[Entry]:
    """Return all settings, or those of a section, or one, in the order of a recipe.

    Raises:
        SettingError: there is no such setting; the nearest ones are given.
    """
    settings = list(_all())
    if key is None:
        return settings
    asked = [each for each in settings if each.key == key or each.key.startswith(f"{key}.")]
    if not asked:
        raise SettingError(
            "recipe", f"there is no setting '{key}'", _near(key, [each.key for each in settings])
        )
    return asked


def listing(settings: Sequence[Entry]) -> str:
    """Return settings, one a line."""
    width = max(len(each.key) for each in settings)
    lines = [f"{each.key:<{width}}  {each.meaning}" for each in settings]
    return "\n".join([*lines, "", "One of them in full: snugfit recipe KEY"])


def page(entry: Entry) -> str:
    """Return one setting in full."""
    rows = [("takes", entry.takes)]
    if entry.required or entry.default is not ...:
        rows.append(("default", "none, it has to be given" if entry.required else shown(entry.default)))
    rows.append(("example", entry.example))
    if entry.keyword:
        rows.append(("in Python", f"sf.train(…, {entry.keyword}=…)"))
    rows.append(("read by", _commands(entry)))
    if entry.not_for:
        rows.append(("not for", f"task {', '.join(entry.not_for)}"))
    if entry.key in _ALONE:
        rows.append(("see", _ALONE[entry.key]))
    return "\n".join(
        [f"{entry.key}: {entry.meaning}", "", *(f"  {label:<10} {text}" for label, text in rows)]
    )


def markdown() -> str:
    """Return the page of the docs."""
    lines = [
        _TITLE,
        "",
        "Every setting of a recipe, from its declaration: `snugfit recipe KEY` says the same, and `snugfit schema` gives it to editors.",
        "Techniques and their settings are [pages of their own](techniques/index.md).",
        "",
    ]
    section = None
    for each in entries():
        first, dot, _ = each.key.partition(".")
        heading = first if dot else "Top level"
        if heading != section:
            section = heading
            lines += [f"## {heading}", ""]
            if dot:
                lines += [f"{m.Recipe.settings()[first].meaning}", ""]
        lines += _of(each)
    return "\n".join(lines).rstrip() + "\n"


def _of(entry: Entry) -> list[str]:
    default = "" if entry.default is ... else f" Default: `{shown(entry.default)}`."
    if entry.required:
        default = " Has to be given."
    python = f" In Python: `{entry.keyword}=`." if entry.keyword else ""
    tasks = f" Not for task {', '.join(entry.not_for)}." if entry.not_for else ""
    return [
        f"### `{entry.key}`",
        "",
        f"{entry.meaning[0].upper()}{entry.meaning[1:]}.",
        "",
        f"Takes {entry.takes}.{default}{python}{tasks}",
        "",
        f"Example: `{entry.example}`",
        "",
        f"Read by: {_commands(entry)}.",
        "",
    ]


def _all() -> Iterator[Entry]:
    unused = {task: frozenset(m.unused(task)) for task in discover()}
    # settings of the top level stand together, before the sections
    whole = m.Recipe.settings()
    for name, each in whole.items():
        if each.section is None:
            yield _entry(name, each, each, "", unused)
    names = {(section, name): keyword for keyword, (section, name) in keywords().items()}
    for key, outer in whole.items():
        if outer.section is not None:
            for name, each in outer.section.settings().items():
                yield _entry(f"{key}.{name}", each, outer, names.get((outer.section, name), ""), unused)


def _entry(
    key: str, each: Setting, outer: Setting, keyword: str, unused: Mapping[str, Set[tuple[str, str]]]
) -> Entry:
    first, _, last = key.partition(".")
    return Entry(
        key,
        each.meaning,
        each.takes,
        ... if each.required or each.default in ("", ()) else each.default,
        _in_one_line(key.split("."), _example(each)),
        keyword,
        each.declaration.commands or outer.declaration.commands or m.COMMANDS,
        tuple(task for task, settings in unused.items() if (first, last) in settings),
    )


def _example(each: Setting) -> Any:
    """Return a value that a recipe may give: the declared one, another than the default, or the default."""
    if each.declaration.example is not None:
        return each.declaration.example
    if isinstance(each.default, bool):
        return not each.default
    others = [name for name in each.names if name != each.default]
    return others[-1] if others else each.default


def _in_one_line(keys: Sequence[str], value: Any) -> str:
    """Return a setting and its value as YAML on one line.

    >>> _in_one_line(["train", "epochs"], 3.0), _in_one_line(["evaluate", "metrics"], ("accuracy",))
    ('train: {epochs: 3.0}', 'evaluate: {metrics: [accuracy]}')
    """
    for key in reversed(keys):
        value = {key: value}
    text = yaml.dump(value, Dumper=Dumper, default_flow_style=True, width=10_000, sort_keys=False)
    return text.strip()[1:-1]


def _commands(entry: Entry) -> str:
    return "every command that takes a recipe" if entry.commands == m.COMMANDS else ", ".join(entry.commands)


def _near(key: str, known: Sequence[str]) -> str:
    """Return where a technique's setting is described, else the settings of that last name here or elsewhere, else the nearest key."""
    first, _, rest = key.partition(".")
    if first in _ALONE and rest:
        return f"Settings of a technique: {_ALONE[first]} {rest.partition('.')[0]}"
    ours = our_name(key)
    theirs = "" if ours is None else ours.recipe
    same = [each for each in known if each.rpartition(".")[2] == key.rpartition(".")[2]]
    if same and not (rest and theirs.startswith(f"{first}.")):  # in the section that was asked for
        return f"Did you mean {' or '.join(same)}?"
    if theirs:
        return f"Did you mean {theirs}?"
    near = nearest(key, known)
    return near if near.startswith("Did you mean") else "All of them: snugfit recipe"
