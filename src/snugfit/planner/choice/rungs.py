"""The techniques that may be added to a run so that it fits, and which of them go together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from snugfit.core.entry import as_entry
from snugfit.core.selection import check
from snugfit.core.technique import Family, Fidelity, Stage, Technique, as_settings
from snugfit.planner.choice.adapter_rate import adapts, at_rate_of_adapters
from snugfit.planner.devices.device import Device
from snugfit.techniques import discover

Techniques = tuple[Technique, ...]


def level_of(techniques: Sequence[Technique]) -> Fidelity:
    """Return how much precision a run with these gives up: as much as the coarsest of them."""
    return max((each.card.fidelity for each in techniques), default=Fidelity.FULL)


def placements(device: Device) -> Iterator[Technique]:
    """Yield what saves memory on a device and leaves the numbers as they are."""
    for technique in discover().values():
        if technique.card.family is Family.PLACEMENT:
            yield from _on(device, technique.rungs())


def coarser(level: Fidelity, device: Device) -> Iterator[Technique]:
    """Yield what saves memory or time at the price of precision, as much as this level gives up, on a device that can compute so.

    float16 is left out where there is bfloat16, which takes as much and needs no scale.
    """
    for technique in discover().values():
        card = technique.card
        spared = card.needs == "float16" and "bfloat16" in device.flops
        if card.fidelity is level and not spared and (not card.needs or card.needs in device.flops):
            yield from _on(device, technique.rungs())


def _on(device: Device, rungs: Sequence[Technique]) -> Iterator[Technique]:
    return (rung for rung in rungs if rung.refused_by(device.kind) is None)


def together(own: Sequence[Technique], added: Sequence[Technique]) -> Techniques:
    """Return all of them; one that may stand in the place of another does, and adapters that are added bring the learning rate of adapters.

    Raises:
        PlanConflict: they exclude each other.
    """
    techniques = list(own)
    for each in added:
        place = next((n for n, other in enumerate(techniques) if each.in_place_of(other) is not None), None)
        if place is None:
            techniques.append(each)
        else:
            techniques[place] = each.in_place_of(techniques[place]) or each
    check(techniques)
    return tuple(map(at_rate_of_adapters, techniques)) if adapts(added) else tuple(techniques)


def is_for_frozen(technique: Technique) -> bool:
    """Return whether what it saves is of weights that do not learn."""
    return bool({Stage.QUANTISE, Stage.STREAM} & {*technique.card.stages})


def freezes(techniques: Sequence[Technique]) -> bool:
    """Return whether these leave most weights as they are, beneath adapters or for some updates."""
    return any(Stage.ADAPT in each.card.stages or "begin" in each.card.seams for each in techniques)


def label(technique: Technique, replaced: Technique | None = None) -> str:
    """Return a technique with the settings that are not its defaults, such as recompute(keep=('attention',)), nor those of what it replaced."""
    (settings,) = as_entry(technique).values()
    same = {} if replaced is None else as_settings(replaced)
    usual: dict[str, object] = (
        {each.name: each.default for each in dataclasses.fields(technique)}
        if dataclasses.is_dataclass(technique)
        else {}
    )
    own = ", ".join(
        f"{name}={value}"
        for name, value in settings.items()
        if value != usual.get(name) and not (name in same and getattr(technique, name) == same[name])
    )
    return f"{technique.card.name}({own})" if own else technique.card.name


def labels_of_added(techniques: Sequence[Technique], own: Sequence[Technique]) -> tuple[str, ...]:
    """Return what a plan has beyond the recipe's own techniques, in words."""
    if adapts(techniques) and not adapts(own):  # the learning rate that comes with adapters is said by itself
        own = [at_rate_of_adapters(each) for each in own]
    gone = [each for each in own if each not in techniques]

    def replaced(by: Technique) -> Technique | None:
        return next((each for each in gone if each.card.name in by.card.replaces), None)

    return tuple(label(each, replaced(each)) for each in techniques if each not in own)
