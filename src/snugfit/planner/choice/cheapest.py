"""The cheapest number of devices: the plan of each is made, and devices times hours times a price is compared.

On one number of devices the cheapest plan is the fastest, so only what several numbers come to is compared here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from snugfit.core.card import Fidelity
from snugfit.errors import UserError
from snugfit.planner.answers.answer import Answer
from snugfit.planner.answers.plan_figures import brief_bytes, brief_seconds
from snugfit.planner.choice import channel
from snugfit.planner.choice.goals import least, worthwhile
from snugfit.units import counted

_UPDATES = 1000
"""Updates that are paid for where nobody knows how long the run is."""


def counts(devices: int, nodes: int, *, skip_one: bool = False) -> list[tuple[int, int]]:
    """Return the numbers of devices to compare, as nodes and the devices of each: powers of two and what was asked for.

    Args:
        skip_one: whether one device is left out, as a way to share was asked for.

    >>> counts(6, 1), counts(4, 2), counts(2, 1, skip_one=True)
    ([(1, 1), (1, 2), (1, 4), (1, 6)], [(1, 1), (1, 2), (1, 4), (2, 4)], [(1, 2)])
    """
    on_one = [(1, each) for each in _powers(devices) if each > 1 or not skip_one]
    return on_one + [(each, devices) for each in _powers(nodes) if each > 1]


def _powers(most: int) -> Iterator[int]:
    each = 1
    while each < most:
        yield each
        each *= 2
    yield most


@dataclass(frozen=True)
class _Offer:
    """The plan of one number of devices."""

    devices: int
    answer: Answer
    price: float  # of the run

    @property
    def level(self) -> Fidelity:
        return Fidelity[self.answer.choice.fidelity.upper()]


def make_cheapest(
    make: Callable[[int, int], Answer], numbers: Sequence[tuple[int, int]], price: float, worth: float
) -> Answer:
    """Return the plan of the least price, which says in `why` what each number of devices comes to.

    Of those within 5% the more faithful one is taken, then the one of fewer devices; a level below `mixed` where it is `worth` times as
    cheap as the best that is finer.

    Args:
        make: the plan of so many nodes and devices of each.
        numbers: to compare, as `counts` has them.
        price: of one hour of one device.
    Raises:
        UserError: no number of devices can be planned.
    """
    offers: list[_Offer] = []
    problems: list[tuple[int, UserError]] = []
    for nodes, devices in numbers:
        if channel.interrupted() and offers:
            break
        try:
            answer = make(nodes, devices)
        except UserError as error:
            problems.append((nodes * devices, error))
            continue
        offers.append(_Offer(nodes * devices, answer, nodes * devices * _hours(answer) * price))
    if not offers:
        raise problems[-1][1]
    fitting = [each for each in offers if each.answer.fits]
    if not fitting:
        # the most devices come nearest to fitting
        nearest = offers[-1].answer
        return replace(nearest, why=(*nearest.why, *_lines(offers, problems, price)))
    best = worthwhile(fitting, lambda each: each.level, _least, lambda each: each.price, worth)
    answer = best.answer
    first = f"Cheapest on {counted(best.devices, 'device')}: {_figure(best.price)} for {_length(answer)}, at {price:g} an hour of each."
    planned = sum(each.answer.planned_seconds for each in offers)
    why = (first, *_lines(offers, problems, price), *answer.why)
    return replace(answer, why=why, planned_seconds=planned)


def _least(offers: Sequence[_Offer]) -> _Offer:
    return least(offers, lambda each: each.price, lambda each: (each.level, each.devices))


def _lines(
    offers: Sequence[_Offer], problems: Sequence[tuple[int, UserError]], price: float
) -> Iterator[str]:
    """Yield what each number of devices comes to."""
    for each in offers:
        prediction = each.answer.prediction
        name = counted(each.devices, "device")
        if not each.answer.fits:
            yield f"On {name}: nothing fits, the smallest plan takes {brief_bytes(prediction.reserved_bytes)} of each."
            continue
        seconds = brief_seconds(3600 * each.price / price / each.devices)
        yield (
            f"On {name}: {brief_seconds(prediction.seconds_per_update)} an update, {seconds} for {_length(each.answer)}, "
            f"{_figure(each.price)}, at {each.answer.choice.fidelity}."
        )
    for devices, error in problems:
        yield f"On {counted(devices, 'device')}: {str(error).splitlines()[0]}"


def _hours(answer: Answer) -> float:
    """Return hours of the run, or of as many updates as `_length` says."""
    prediction = answer.prediction
    seconds = prediction.seconds_total
    return (_UPDATES * prediction.seconds_per_update if seconds is None else seconds) / 3600


def _length(answer: Answer) -> str:
    return f"{_UPDATES:,} updates" if answer.prediction.seconds_total is None else "the run"


def _figure(price: float) -> str:
    """Return a price, in cents where it is one of few.

    >>> _figure(8.666), _figure(0.00421), _figure(12345.6)
    ('8.67', '0.0042', '12,346')
    """
    if price >= 1000:
        return f"{price:,.0f}"
    return f"{price:.2f}" if price >= 0.1 else f"{price:.2g}"
