"""The ways to share that should fit, by what a step on one device tells, and what is said of those that are not taken."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from snugfit.planner.answers.answer import Alternative, Answer, Rejected
from snugfit.planner.choice.sharing_rules import CLOSE, Decision, Facts, Way

Option = tuple[Way, int, Decision]
"""A way that should fit, its micro-batch, and the decision that it was a part of."""


def options_of(decisions: Sequence[tuple[int, Decision]]) -> list[Option]:
    """Return what should fit, the best first: the faster, and of about as fast ones a decision's own way."""
    fitting = [(way, size, decision) for size, decision in decisions for way in decision.fitting]
    return sorted(
        fitting,
        key=lambda option: (option[0].seconds * (1 if option[0] is option[2].way else CLOSE), -option[1]),
    )


def _best(options: Sequence[Option]) -> dict[str, Option]:
    """Return the best option of each way."""
    best_of_way: dict[str, Option] = {}
    for option in options:
        best_of_way.setdefault(option[0].strategy, option)
    return best_of_way


def alternatives_of(options: Sequence[Option], answer: Answer) -> Iterator[Alternative]:
    """Yield each other way that should fit."""
    for name, (way, size, _) in _best(options).items():
        if name != answer.choice.strategy:
            choice = replace(answer.choice, strategy=name, devices=way.devices, micro_batch=size)
            rung = f"{name}, micro-batch {size} (estimated)"
            yield Alternative(rung, choice, way.bytes, way.bytes, way.seconds)


def rejections_of(decisions: Sequence[tuple[int, Decision]], options: Sequence[Option]) -> Iterator[Rejected]:
    """Yield each way that fits with no micro-batch."""
    size, decision = decisions[-1]
    fitting = _best(options)
    for way in decision.ways:
        if way.strategy not in fitting:
            yield Rejected(
                f"{way.strategy}, micro-batch {size} (estimated)",
                "does not fit with any micro-batch",
                way.bytes,
                way.seconds,
            )


def between(ends: Mapping[int, Facts], size: int, rows: int) -> Facts:
    """Facts of a micro-batch from those of the smallest and the largest: bytes grow with it, seconds with how many there are.

    With one micro-batch there are no gradients yet where the others have them.
    """
    low, high = min(ends), max(ends)
    first, last = ends[low], ends[high]
    part = (size - low) / max(1, high - low)
    later = 1.0 if low == high else (1 / low - 1 / size) / (1 / low - 1 / high)

    def at(name: str, share: float) -> float:
        return float(getattr(first, name) + (getattr(last, name) - getattr(first, name)) * share)

    nearest = last if size == high else first
    return replace(
        nearest,
        peak=round(nearest.peak - nearest.rest + at("rest", part)),
        largest_activations=round(at("largest_activations", part)),
        micro_batches=first.cluster.world * math.ceil(rows / size),
        forward=at("forward", later),
        backward=at("backward", later),
    )
