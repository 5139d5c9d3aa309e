"""The checks of techniques that are used together, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn

from snugfit.core.gradient_exchange import Exchange
from snugfit.core.random import derive_seed, preserved_randomness, seed_device
from snugfit.core.technique import (
    SINGLE_SEAMS,
    STAGED_SEAMS,
    Card,
    Kind,
    Sharing,
    Stage,
    Technique,
    as_settings,
)
from snugfit.errors import PlanConflict, SettingError


def listed(optimizer: Any, techniques: Any) -> list[Technique]:
    """Return all techniques of a step, the optimizer first where it is one.

    Raises:
        SettingError: something else is among them.
    """
    if isinstance(optimizer, (list, tuple)):
        raise SettingError(
            "optimizer",
            f"got {len(optimizer)}, expected one",
            "Give one with a group of parameters for each rate, such as AdamW([{'params': body, 'lr': 1e-5}, "
            "{'params': head, 'lr': 1e-3}]); models that train against each other need a Step each.",
        )
    if isinstance(optimizer, type):
        raise SettingError(
            "optimizer", f"is the class {optimizer.__name__}", f"Make it: {optimizer.__name__}(...)"
        )
    if not isinstance(optimizer, (torch.optim.Optimizer, Technique, type(None))):
        raise SettingError(
            "optimizer",
            f"got {optimizer!r}, expected a torch optimizer or a technique that is one",
            "Give torch.optim.AdamW(model.parameters(), lr=1e-3), or a technique such as AdamW().",
        )
    if isinstance(techniques, (str, Technique)) or not isinstance(techniques, Sequence):
        raise SettingError(
            "techniques", f"must be a list, found {techniques!r}", "Write [EMA(decay=0.999)], or [] for none."
        )
    for technique in techniques:
        if isinstance(technique, type) and issubclass(technique, Technique):
            raise SettingError(
                "techniques", f"holds the class {technique.__name__}", f"Make it: {technique.__name__}()"
            )
        if not isinstance(technique, Technique):
            raise SettingError(
                "techniques", f"{technique!r} is no technique", "Give objects, such as EMA(decay=0.999)."
            )
    return list(map(_hashable, [*([optimizer] if isinstance(optimizer, Technique) else []), *techniques]))


def _hashable(technique: Technique) -> Technique:
    """Return a technique with a tuple in place of each list that was given for one, in techniques within it too: plans are compared and kept by them."""
    given = as_settings(technique)
    types = {each.name: str(each.type) for each in fields(technique)} if given else {}  # type: ignore[arg-type]
    tuples = {
        name: tuple(_hashable(each) if isinstance(each, Technique) else each for each in value)
        for name, value in given.items()
        if isinstance(value, (list, tuple)) and "tuple" in types[name]
    }
    changed = {name: value for name, value in tuples.items() if value != given[name]}
    return replace(technique, **changed) if changed else technique  # type: ignore[type-var]


def check(techniques: Sequence[Technique]) -> None:
    """Refuse combinations that exclude each other; nothing has been allocated yet.

    Raises:
        PlanConflict: names both, the reason and the way out.
    """
    for place, technique in enumerate(techniques):
        for other in techniques[:place]:
            name = technique.card.name
            if name == other.card.name:
                raise PlanConflict("techniques", f"'{name}' is given twice", "Remove one.")
            reason = exclusion(other.card, technique.card)
            if reason is None:
                settings = technique.refused_beside(other) or other.refused_beside(technique)
                reason = settings and f"exclude each other: {settings}"
            if reason is not None:
                raise _conflict(f"'{other.card.name}' and '{name}' {reason}", "Remove one of them.")


def check_shared(techniques: Sequence[Technique], sharing: Sharing | None) -> None:
    """Refuse what devices that share the model in this way cannot have; None stands for one device.

    Raises:
        PlanConflict: names it, the reason and the way out.
    """
    if sharing is None:
        return
    for technique in techniques:
        reason = technique.refused_on(sharing)
        if reason is not None:
            place = f"cannot be had where {_SHARED[sharing]}"
            raise _conflict(
                f"'{technique.card.name}' {place}: {reason}", "Remove it, or choose another strategy."
            )


def check_on(techniques: Sequence[Technique], device: str) -> None:
    """Refuse what devices of this kind cannot have; nothing has been allocated yet.

    Raises:
        PlanConflict: names the technique, the reason and the way out.
    """
    for technique in techniques:
        reason = technique.refused_by(device)
        if reason is not None:
            raise _conflict(
                f"'{technique.card.name}' cannot be had on {device}: {reason}",
                "Remove it, or choose another device.",
            )


def exchange_of(techniques: Sequence[Technique]) -> Exchange | None:
    """Return how several devices are to add up gradients; None: as they are. At most one technique says so."""
    exchanges = (technique.exchange() for technique in techniques)
    return next((exchange for exchange in exchanges if exchange is not None), None)


def picture_technique(techniques: Sequence[Technique]) -> Technique | None:
    """Return the technique that changes each picture that is trained on, of which a run has one at most."""
    return next((technique for technique in techniques if technique.picture() is not None), None)


def _conflict(reason: str, remedy: str) -> PlanConflict:
    """Return the error of a reason that a card or a technique gives, in whose later sentences may stand what to do."""
    problem, _, its_own = reason.partition(". ")
    return PlanConflict("techniques", problem, its_own or remedy)


_SHARED = {
    Sharing.COPIES: "several devices have a copy of the model each (ddp)",
    Sharing.SHARDS: "the weights are spread over several devices (fsdp)",
}


def exclusion(one: Card, other: Card) -> str | None:
    """Return why a run cannot have both, to be read after their names; None if it can."""
    for first, second in ((one, other), (other, one)):
        if second.name in first.conflicts:
            return f"exclude each other: {first.conflicts[second.name]}"
        for place, reason in first.refuses.items():
            if place in second.seams or place in second.stages:
                return f"exclude each other: {reason}"
    for seam in SINGLE_SEAMS:
        if seam in one.seams and seam in other.seams:
            return f"both give the {seam}, and a run has one. Remove one."
    if one.precision and other.precision:
        return "both say what forward and backward compute in, and a run has one precision. Remove one."
    for stage in one.stages:
        if stage in other.stages and not stage.shared:
            return f"both stand at the stage '{stage.name.lower()}' of the seam '{stage.seam}', which holds one. Remove one."
    if Kind.TOKENS in {one.kind, other.kind} and {one.kind, other.kind} & {Kind.IMAGES, Kind.NUMBERS}:
        return f"work on {one.kind} and on {other.kind}: no examples are both. Remove one."
    return None


def in_order(techniques: Sequence[Technique], seam: str) -> list[Technique]:
    """Return the techniques by their place in the chain of `seam`; those without one last, as they were given.

    Those that change the model in one place go by their names, so that its parameters have one order.
    """
    if seam not in STAGED_SEAMS:
        return list(techniques)
    last = max(Stage) + 1

    def place(technique: Technique) -> tuple[int, str]:
        stage = technique.card.stage(seam)
        return last if stage is None else stage, technique.card.name if seam == "prepare" else ""

    return sorted(techniques, key=place)


def prepare(model: nn.Module, techniques: Sequence[Technique], seed: int) -> nn.Module:
    """Return the model as the techniques change it, by their stages; new weights are of the run's seed.

    Raises:
        SettingError: a technique cannot change the model, perhaps as another one has before.
    """
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    reshaped_by: list[str] = []
    for technique in in_order(techniques, "prepare"):
        with preserved_randomness(device):
            seed_device(derive_seed(seed, "prepare", technique.card.name), device)
            try:
                model = technique.prepare(model)
            except SettingError as error:
                if not reshaped_by:
                    raise
                raise SettingError(
                    error.setting,
                    f"{error.problem.removesuffix('.')}; before it {', '.join(reshaped_by)} gave layers other shapes",
                    error.remedy,
                ) from error
        if Stage.RESHAPE in technique.card.stages:
            reshaped_by.append(technique.card.name)
    return model
