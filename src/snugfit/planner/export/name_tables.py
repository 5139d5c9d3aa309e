"""The names of another tool: one table for each tool, and one way to apply it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from snugfit.planner.export.exported_plan import Asked, Entry, Exported, ExportedPlan, Strategy, asked_of

_NOTHING = object()


@dataclass(frozen=True)
class From:
    """A value of the tool's file that is made of settings of the technique."""

    settings: tuple[str, ...]
    make: Callable[..., Any]  # of the plan and the settings' values

    def value(self, plan: ExportedPlan, asked: Asked) -> Any:
        return self.make(plan, *(asked.settings[name] for name in self.settings))


def of(*settings: str, by: Callable[..., Any] = lambda value: value) -> From:
    """Return the value that `by` makes of settings; by default the one setting itself."""
    return From(settings, lambda _, *values: by(*values))


def planned(*settings: str, by: Callable[..., Any]) -> From:
    """Return the value that `by` makes of the plan and of settings."""
    return From(settings, by)


def notes_on_windows(plan: ExportedPlan) -> Iterator[str]:
    """Yield what a script has to do about the length of examples, and how its gradients differ, where the tool gives it a batch alone."""
    if plan.max_length is not None:
        yield f"max_length: cut the examples to {plan.max_length} tokens where they become tokens."
    if plan.accumulation * plan.devices > 1:
        yield (
            "accumulation: gradients are the mean of the micro-batches' means there, and the last window of an epoch is divided as if "
            "it were whole: not the mean over tokens or rows where micro-batches differ."
        )


@dataclass(frozen=True)
class Rule:
    """The counterpart of a technique in a tool.

    `keys` maps keys of the tool's file, with dots between sections, to constants or to what settings make. `fixed` holds the values
    that the tool gives settings which are in no key: the technique's defaults where nothing is said. `differs` says what is not the
    same there, under the setting that has to be on for that to matter, or under "" where it always does.
    """

    keys: Mapping[str, Any]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    differs: Mapping[str, str] = field(default_factory=dict)

    def carried(self) -> set[str]:
        """Return the settings that come to stand in the file."""
        return {name for value in self.keys.values() if isinstance(value, From) for name in value.settings}


class ByHand(str):
    """The counterpart of a technique that a tool's files cannot say: a sentence."""

    __slots__ = ()


Table = Mapping[str, Rule | ByHand | str]
"""By name of a technique what the tool has for it, or the reason why it has nothing and what to do instead."""


@dataclass(frozen=True)
class Tool:
    """A tool that plans are exported to.

    `strategies` are the ways to share that its files can say. `base` gives what the plan's sizes come to, and turns off what the tool does by default. `missing` has the reason for what is not
    in the table, by the recipe's key. `notes` says what of the sizes the file cannot carry, and what the tool does with them that
    is not the same. `write` makes the files from the keys and the sentences.
    """

    name: str
    strategies: tuple[Strategy, ...]
    base: Callable[[ExportedPlan], Mapping[str, Any]]
    table: Callable[[ExportedPlan], Table]
    missing: Mapping[str, str]
    notes: Callable[[ExportedPlan], Iterable[str]]
    write: Callable[[Mapping[str, Any], tuple[str, ...]], tuple[tuple[str, str], ...]]

    def has(self, entry: Entry, plan: ExportedPlan) -> bool:
        """Return whether the tool has the same as a technique with these settings, in runs that share the work as this plan does."""
        asked = asked_of("techniques", entry)
        rule = self.table(plan).get(asked.name)
        return isinstance(rule, ByHand) or (isinstance(rule, Rule) and not [*_lost(rule, asked)])

    def export(self, plan: ExportedPlan) -> Exported:
        """Return the plan in this tool's words."""
        keys, table = dict(self.base(plan)), self.table(plan)
        left_out = list(self.notes(plan))
        if plan.nodes > 1:
            left_out.append(
                f"nodes: the plan is for {plan.nodes} machines of {plan.devices // plan.nodes} devices, and the commands here are those for "
                "one. Start the script on each, with the address of the first."
            )
        owners: dict[str, str] = {}
        for asked in plan.asked():
            rule = table.get(asked.name, self.missing[asked.key])
            if isinstance(rule, str):
                left_out.append(f"{_written(asked)}: {rule}")
                continue
            values = {key: _value(value, plan, asked) for key, value in rule.keys.items()}
            taken = [key for key, value in values.items() if key in owners and keys[key] != value]
            if taken:
                left_out.append(
                    f"{_written(asked)}: {taken[0]} is taken by {owners[taken[0]]}, and holds one."
                )
                continue
            keys |= values
            owners |= dict.fromkeys(values, asked.name)
            left_out += _differences(rule, asked)
        return Exported(self.name, self.write(nested(keys), tuple(left_out)), tuple(left_out))


def nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Sections within each other from keys with dots.

    >>> nested({"bf16.enabled": True, "seed": 1, "bf16.scale": 2})
    {'bf16': {'enabled': True, 'scale': 2}, 'seed': 1}
    """
    whole: dict[str, Any] = {}
    for key, value in keys.items():
        *sections, name = key.split(".")
        place = whole
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return whole


def commented(left_out: Iterable[str]) -> str:
    """Return what is left out, as comments of YAML and Python."""
    lines = [f"#  - {sentence}" for sentence in left_out]
    return "\n".join(["# Not carried, or not the same there:", *lines]) + "\n" if lines else ""


def file_of_left_out(tool: str, left_out: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return what is left out as a file of the tool's own, for formats without comments; none where nothing is."""
    return ((f"{tool}_left_out.txt", "\n".join(left_out) + "\n"),) if left_out else ()


def _value(value: Any, plan: ExportedPlan, asked: Asked) -> Any:
    return value.value(plan, asked) if isinstance(value, From) else value


def _lost(rule: Rule, asked: Asked) -> Iterator[tuple[str, Any, Any]]:
    """Yield each setting that the tool's file cannot hold, with its value and the one that it has there."""
    for setting, value in asked.settings.items():
        there = rule.fixed.get(setting, asked.defaults.get(setting, _NOTHING))
        if setting not in rule.carried() and value != there:
            yield setting, value, there


def _differences(rule: Rule, asked: Asked) -> Iterable[str]:
    for setting, value, there in _lost(rule, asked):
        says = f"the tool has {_flow(there)}" if setting in rule.fixed else "the tool has no setting for it"
        yield f"{asked.name}.{setting}: {_flow(value)} is not carried: {says}."
    for setting, sentence in rule.differs.items():
        if not setting or asked.settings[setting]:
            yield f"{asked.name}: {sentence}"


def _written(asked: Asked) -> str:
    """Return the technique with its settings, in one line."""
    settings = ", ".join(f"{name}: {_flow(value)}" for name, value in asked.settings.items())
    return f"{asked.name} {{{settings}}}" if settings else asked.name


def _flow(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, default=str, ensure_ascii=False)
