"""Leaks: inputs that are on both sides of a split, as they are or nearly, and what is done about them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from snugfit.data.splits.hold_out import VALIDATION
from snugfit.errors import DataError, SettingError, short_path
from snugfit.units import counted

if TYPE_CHECKING:
    from snugfit.data.splits.near_duplicates import Near

Policy = Literal["warn", "fail", "drop"]
LEAKS = "data.leaks"
_SHOWN = 3


@dataclass(frozen=True)
class LeakSettings:
    """The treatment of inputs that are on both sides.

    Args:
        policy: warn says so, fail ends the run, drop leaves them out of the rows to train on.
        near: whether nearly equal ones count too.
    """

    policy: Policy = "warn"
    near: bool = False


@dataclass(frozen=True)
class Inputs:
    """The inputs of rows, by which those of two sides are compared; labels are no part of them.

    Args:
        plural: what they are called.
        same: of each part of the rows, by its number: what is equal where inputs are.
        alike: of each part, what `near` compares.
        near: the search for nearly equal ones; None where there is none.
    """

    plural: str
    same: Callable[[int], Sequence[Hashable]]
    alike: Callable[[int], Sequence[Any]] = lambda _: ()
    near: Near | None = None


def inputs_of_texts(parts: Sequence[Sequence[Any]], plural: str = "texts") -> Inputs:
    """Return the inputs of parts of rows that are texts, or some texts each."""
    from snugfit.data.splits.near_duplicates import near_texts  # NumPy: a recipe is read without it

    def joined(part: int) -> list[str]:
        return ["\n".join([text] if isinstance(text, str) else text) for text in parts[part]]

    def digests(part: int) -> list[bytes]:
        return [content_digest("\0".join([text] if isinstance(text, str) else text)) for text in parts[part]]

    return Inputs(plural, digests, joined, near_texts)


def content_digest(content: str | bytes) -> bytes:
    """Return what equal contents share and others do not, in 16 bytes."""
    content = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=16).digest()


@dataclass(frozen=True)
class Side:
    """Some rows of a part.

    Args:
        part: its number.
        places: of the rows in it.
        origin: the file and line of a row, by its place.
    """

    part: int
    places: Sequence[int]
    origin: Callable[[int], str]


def without_leaks(
    settings: LeakSettings, inputs: Inputs, train: Side, held_out: Side
) -> tuple[list[int], list[str]]:
    """Return the places of the rows to train on, without leaks where these are to be dropped, and messages about them.

    Raises:
        DataError: there are leaks, and the policy is fail.
        SettingError: nearly equal ones are asked for, and there is no search for them.
    """
    if settings.near and inputs.near is None:
        from snugfit.data.splits.near_duplicates import NEAR_DUPLICATES

        raise SettingError(
            NEAR_DUPLICATES,
            f"is true, and {inputs.plural} are compared as they are alone",
            "Remove it: equal ones are looked for anyway.",
        )
    places = list(train.places)
    if not len(held_out.places):
        return places, []
    same = _equal(inputs.same, train, held_out)
    alike: dict[int, list[int]] = {}
    if settings.near:
        assert inputs.near is not None
        pairs = inputs.near(*_of_both(inputs.alike, train, held_out))
        for at, other in pairs:
            if (theirs := held_out.places[other]) not in same:
                alike.setdefault(theirs, []).append(train.places[at])
    if not same and not alike:
        return places, []
    text = _words(inputs.plural, same, alike, train, held_out)
    if settings.policy == "fail":
        raise DataError(
            VALIDATION,
            f"{text}.",
            "Remove them from one side, hold rows out by group, or set data.leaks: drop.",
        )
    if settings.policy == "warn":
        return places, [
            f"{text}: their scores say nothing new. data.leaks: drop leaves them out of training."
        ]
    leaking = {row for rows in (*same.values(), *alike.values()) for row in rows}
    remaining = [place for place in places if place not in leaking]
    if not remaining:
        raise DataError(LEAKS, f"{text}, and no row is left to train on", "Give other rows to validate on.")
    return remaining, [f"{text}: {counted(len(leaking), 'row')} left out of training (data.leaks: drop)."]


def _of_both(
    values: Callable[[int], Sequence[Any]], first: Side, second: Side
) -> tuple[list[Any], list[Any]]:
    """Return the values of both sides, of which those of one part are made once."""
    of_first = values(first.part)
    of_second = of_first if second.part == first.part else values(second.part)
    return [of_first[place] for place in first.places], [of_second[place] for place in second.places]


def _equal(values: Callable[[int], Sequence[Hashable]], train: Side, held_out: Side) -> dict[int, list[int]]:
    """Return, by the places of held-out rows, those of the rows to train on that are equal."""
    trained, scored = _of_both(values, train, held_out)
    wanted = set(scored)
    known: dict[Hashable, list[int]] = {}
    for place, value in zip(train.places, trained, strict=True):
        if value in wanted:
            known.setdefault(value, []).append(place)
    return {
        place: known[value] for place, value in zip(held_out.places, scored, strict=True) if value in known
    }


def _words(
    plural: str, same: dict[int, list[int]], alike: dict[int, list[int]], train: Side, held_out: Side
) -> str:
    """Return how many held-out rows are trained on too, and which are the first."""

    def some(rows: dict[int, list[int]], verb: str) -> str:
        shown = [
            f"{short_path(held_out.origin(own))} {verb} {short_path(train.origin(others[0]))}"
            for own, others in list(rows.items())[:_SHOWN]
        ]
        return f"{', '.join(shown)}{', …' if len(rows) > _SHOWN else ''}"

    total = len(held_out.places)
    parts = []
    if same:
        parts.append(
            f"{len(same):,} of {total:,} validation {plural} are also trained on ({some(same, 'is')})"
        )
    if alike:
        parts.append(
            f"{len(alike):,} of {total:,} validation {plural} are nearly equal to ones that are trained on ({some(alike, 'is like')})"
        )
    return ", and ".join(parts)
