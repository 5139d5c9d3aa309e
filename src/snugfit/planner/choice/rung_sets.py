"""The properties of sets of rungs, by their cards alone: what they move, how one set compares with another, what goes together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from functools import cache

from snugfit.core.technique import Family, Stage, Technique, as_settings
from snugfit.errors import PlanConflict
from snugfit.planner.choice.rungs import Techniques, freezes, together
from snugfit.techniques import find

PassKind = tuple[str, frozenset[Technique]]
StepKind = tuple[str, frozenset[Technique]]


def format_of_weights(techniques: Techniques) -> frozenset[Technique]:
    """Return what decides how many bytes weights take: what prepares them, and 16 bits, in which shards are gathered."""
    not_placed = (each for each in techniques if each.card.family is not Family.PLACEMENT)
    return frozenset(
        each
        for each in not_placed
        if each.card.stage("prepare") or each.card.needs in ("bfloat16", "float16")
    )


def placements_of(techniques: Techniques) -> frozenset[Technique]:
    """Return those that say what is kept, and where."""
    return frozenset(each for each in techniques if each.card.family is Family.PLACEMENT)


def moves_what_lasts(added: Techniques) -> bool:
    """Return whether a placement among these says where weights, gradients or states are."""
    placed = (each.card for each in added if each.card.family is Family.PLACEMENT)
    return streams(added) or any("stepping" in card.seams for card in placed)


def is_about_states(rung: Technique) -> bool:
    """Return whether what it saves is of states and gradients; a precision saves more."""
    return bool({"optimizer", "stepping"} & {*rung.card.seams}) and not rung.card.precision


def lasting_of(techniques: Techniques) -> frozenset[Technique]:
    """Return all of a plan's techniques but placements of activations."""
    return frozenset(
        each for each in techniques if each.card.family is not Family.PLACEMENT or moves_what_lasts((each,))
    )


def states_of(techniques: Techniques) -> frozenset[Technique]:
    """Return all of a plan's techniques but placements that leave weights and states where they are."""
    return frozenset(
        each
        for each in techniques
        if each.card.family is not Family.PLACEMENT or {Stage.PLACE, Stage.STREAM} & {*each.card.stages}
    )


def are_of_one_kind(one: Technique, other: Technique) -> bool:
    """Return whether both are placements of what lasts, or both of what a pass leaves."""
    places = {one.card.family, other.card.family} == {Family.PLACEMENT}
    return places and moves_what_lasts((one,)) == moves_what_lasts((other,))


def streams(added: Techniques) -> bool:
    """Return whether weights come to the device while they are used."""
    return any(Stage.STREAM in each.card.stages for each in added)


def offloads_activations(techniques: Techniques) -> bool:
    """Return whether what a forward leaves, and not the loss alone, is elsewhere until its backward."""
    placed = ({*each.card.seams} for each in techniques if each.card.family is Family.PLACEMENT)
    return any("forward" in seams and "loss" not in seams for seams in placed)


def adds_placements(fewer: Techniques, more: Techniques) -> bool:
    """Return whether what the larger set has beyond the smaller one only says where things are."""
    rest = {*more} - {*fewer}
    return {*fewer} <= {*more} and all(each.card.family is Family.PLACEMENT for each in rest)


def takes_longer(one: Techniques, other: Techniques) -> bool:
    """Return whether what the latter has in place of the former takes time: placements beyond it, or later rungs of its techniques.

    Where activations are elsewhere, what is placed beside them may save more time than it takes: there is less to copy, or more to do meanwhile.
    """
    gone = [each for each in one if each not in other]
    come = [each for each in other if each not in one]
    if offloads_activations(one) and come:
        return False
    later = [each for each in come if any(_is_later(each, rung) for rung in gone)]
    return len(later) == len(gone) and all(
        each in later or each.card.family is Family.PLACEMENT for each in come
    )


def _is_later(rung: Technique, other: Technique) -> bool:
    """Return whether both are rungs of one technique, this one the slower.

    Blocks that keep some of what they computed are not always the faster ones: where an update is many small kernels, to keep takes its time.
    """
    if Stage.RECOMPUTE in rung.card.stages:
        return False
    mine, its = _place_of(rung), _place_of(other)
    return rung.card.name == other.card.name and mine is not None and its is not None and mine > its


@cache
def _place_of(technique: Technique) -> int | None:
    """Return the place among the rungs of a technique, the fastest first, at which one with these settings is."""
    rungs = type(technique).rungs()
    return next((n for n, rung in enumerate(rungs) if rung == technique or stands_in(rung, technique)), None)


def saves_less(fewer: Techniques, more: Techniques) -> bool:
    """Return whether the larger set has placements beyond the smaller one, none of which is in the way of those that both have.

    A block that is computed again has all its activations on the device then, those too that would be elsewhere without.
    """
    recomputed = recomputes({*more} - {*fewer})
    return adds_placements(fewer, more) and not (recomputed and offloads_activations(fewer))


def recomputes(techniques: Iterable[Technique]) -> bool:
    """Return whether blocks are computed again in the backward pass."""
    return any(Stage.RECOMPUTE in each.card.stages for each in techniques)


def stands_in(rung: Technique, other: Technique) -> bool:
    """Return whether a technique is a rung that took the settings of what it stands in for; its own settings are the rung's."""
    if rung.card.name != other.card.name or not rung.card.replaces:
        return False
    mine, its = as_settings(rung), as_settings(other)
    return all(mine[name] == its[name] for name in mine.keys() - _settings_of(rung.card.replaces))


@cache
def _settings_of(names: tuple[str, ...]) -> frozenset[str]:
    """Return the settings that techniques of these names have."""
    return frozenset(field.name for name in names for field in fields(find(name)))  # type: ignore[arg-type]


def order_of(rungs: Techniques) -> dict[Technique, int]:
    """Return the place of each rung in a plan: formats first, the coarsest of them before others."""
    ordered = sorted(rungs, key=lambda each: (each.card.family is Family.PLACEMENT, -each.card.fidelity))
    return {each: place for place, each in enumerate(ordered)}


def go_together(own: Techniques, *rungs: Technique) -> bool:
    """Return whether a recipe's techniques and these rungs may stand beside each other."""
    try:
        together(own, rungs)
    except PlanConflict:
        return False
    return True


def number_of_sets(own: Techniques, rungs: Techniques) -> int:
    """Return how many sets of rungs go beside a recipe's techniques and each other."""
    sets = [0]  # a bit for each rung
    for place, rung in enumerate(rungs):
        excluded = sum(1 << n for n, other in enumerate(rungs[:place]) if not go_together(own, rung, other))
        sets += [each | 1 << place for each in sets if not each & excluded]
    return len(sets)


def number_type(techniques: Techniques) -> str:
    """Return the numbers that a set of techniques computes in, as devices name them."""
    needs = (each.card.needs for each in techniques if each.card.precision and each.card.needs)
    return next(needs, "float32")


def kind_of_passes(techniques: Techniques) -> PassKind:
    """Return the numbers that sets have in common whose passes are alike, and the format of weights.

    A pass of few tokens takes most of its time to read weights and to cast them, which no two formats do alike.
    """
    return number_type(techniques), format_of_weights(techniques)


def kinds_of_step(techniques: Techniques) -> tuple[StepKind, StepKind]:
    """Return what sets have in common whose step is the same, and what those whose step is alike, but for the format of weights."""
    states = frozenset(each for each in techniques if is_about_states(each))
    return ("same", lasting_of(techniques)), (
        "beside frozen ones" if freezes(techniques) else "of all",
        states,
    )
