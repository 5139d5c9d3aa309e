"""Bounds: what is known of a set of rungs before it is run, by sets that were.

A placement takes time and gives memory, so what adds placements to a set that is too slow already is too slow, and what takes some
away from a set that fits in no micro-batch does not fit either, unless recomputation is taken away from what is done to activations.
No level is faster than its arithmetic at the device's peak, none much faster than passes in the same numbers from such weights and steps
of the same optimizer were seen to be, and no micro-batch faster than one of more examples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from snugfit.core.technique import Fidelity, Stage, Technique
from snugfit.planner.answers.answer import Prediction
from snugfit.planner.choice.candidate import Candidate
from snugfit.planner.choice.rung_sets import (
    PassKind,
    StepKind,
    adds_placements,
    format_of_weights,
    kind_of_passes,
    kinds_of_step,
    lasting_of,
    number_type,
    offloads_activations,
    placements_of,
    saves_less,
    states_of,
    streams,
    takes_longer,
)
from snugfit.planner.choice.rungs import Techniques, freezes
from snugfit.planner.choice.trials import Trials

_FORWARD = 1 / 3
"""Of the arithmetic of training all weights, what training beside frozen ones takes at least: a forward, where only the last layer learns."""

_ALIKE_PASSES = 0.9
"""Of the seconds of the fastest passes, what those of other sets that compute in the same numbers, from weights of one format, take at least: by 5% they were seen to differ."""

_ALIKE_STEPS = 0.15
"""Of the seconds of the fastest step of one optimizer in one place, what those take at least whose weights have another format: 0.18 was seen."""

_SURE = 0.94
"""Of the seconds that a search has of a plan, what it takes at least when it is predicted whole, and so do those with more placements.

By 3.1% they were seen to differ where a size is told by those around it, and by 4.5% where updates are made in backward by an optimizer on the host.
"""

_ALIKE_MORE = 0.5
"""Of what several passes take beyond one in sets that differ in what is done to activations alone, what they take at least: 0.67 was seen."""

_TIMES_SEEN = 2.0
"""Times the most seconds that a placement was seen to take beside the same weights and states, what it takes at most beside other placements: it took the same, or none."""

_ALIKE_FLOPS = 0.95
"""Of the operations of other sets that freeze as much, what one with as many placements takes at least: by 1.3% they were seen to differ."""


@dataclass
class Bounds(Trials):
    """Plans that were predicted, and what they say of others."""

    _too_heavy: set[frozenset[Technique]] = field(default_factory=set)  # formats of weights that do not fit
    _least_seconds: dict[Techniques, float] = field(default_factory=dict)
    # of passes without placements that compute in the same numbers, from weights of one format; of steps that are the same, or alike
    _pass_seconds: dict[PassKind, float] = field(default_factory=dict)
    _step_seconds: dict[StepKind, float] = field(default_factory=dict)
    # that a placement of activations took at most, beside the same weights and states
    _placement_seconds: dict[tuple[frozenset[Technique], Technique], float] = field(default_factory=dict)
    # weights and states at a peak, or all at the step's, of sets that differ in what is done to activations alone
    _least_bytes: dict[frozenset[Technique], int] = field(default_factory=dict)
    _state_bytes: dict[frozenset[Technique], int] = field(default_factory=dict)  # of weights and states alone

    def __post_init__(self) -> None:
        super().__post_init__()
        self._note_bytes(self.asked)
        self._least_seconds[self.asked.techniques] = self.asked.prediction.seconds_per_update

    def _sizes_left(self, added: Techniques) -> list[int]:
        """Return micro-batches in which a set of rungs may fit and be fast enough to be the choice, but for the window in one pass."""
        limit = self._limit(self.level(added))
        return [
            size
            for size in self._sizes
            if size < self.rows
            and self.least_seconds_in(added, size) < limit
            and self.least_bytes_in(added, size) <= self.budget.usable
        ]

    def least_seconds_in(self, added: Techniques, size: int) -> float:
        """Return seconds that an update takes at least in micro-batches of a size, by those of that size, or more, of sets that are no slower.

        What the caches of a CPU hold is faster, so there only the smallest size says something: a pass of it is faster than one of more.
        """
        mine = self._techniques(added)
        if self._on_cpu:
            last = self._known(mine, self._ends[1])
            share = math.ceil(self.rows / size) / math.ceil(self.rows / self._ends[1])
            return last.prediction.seconds_per_update * share if last is not None else 0.0
        slower = (
            each.prediction.seconds_per_update
            for each in self.tried
            if each.micro_batch >= size and takes_longer(each.techniques, mine)
        )
        return _SURE * max([self._least_seconds_of_passes(mine, size), *slower])

    def _least_seconds_of_passes(self, techniques: Techniques, size: int) -> float:
        """Return seconds by one pass of a set, and by the least that several took beyond one in sets with the same weights and states there."""
        whole = self._known(techniques, self.rows)
        if whole is None:
            return 0.0
        if offloads_activations(techniques):  # whose copies may hide what more passes take
            return whole.prediction.seconds_per_update
        kind = lasting_of(techniques)
        alike = [
            each
            for each in self.tried
            if lasting_of(each.techniques) == kind and not offloads_activations(each.techniques)
        ]
        in_one = {
            each.techniques: each.prediction.seconds_per_update
            for each in alike
            if each.micro_batch == self.rows
        }
        more: dict[Techniques, float] = {}
        for each in alike:
            if size <= each.micro_batch < self.rows and each.techniques in in_one:
                seconds = each.prediction.seconds_per_update - in_one[each.techniques]
                more[each.techniques] = max(seconds, more.get(each.techniques, 0.0))
        return whole.prediction.seconds_per_update + _ALIKE_MORE * min(more.values(), default=0.0)

    def least_bytes_in(self, added: Techniques, size: int) -> int:
        """Return bytes of the device that a set of rungs takes at least in micro-batches of a size, by the window in one pass.

        What a pass leaves grows with its size from something on, so of half the size there is at least half; of gradients, which add up,
        there are no fewer.
        """
        whole = self._known(self._techniques(added), self.rows)
        if whole is None:
            return 0
        kinds = whole.prediction.peak_by_kind
        stays = sum(kinds.get(kind, 0) for kind in ("weights", "optimizer", "gradients"))
        return stays + (sum(kinds.values()) - stays) * size // self.rows

    def _may_fit_whole(self, last: Candidate) -> bool:
        """Return whether the window may fit in one pass where its smallest micro-batches do not.

        One pass adds to no gradients that are there already, and where updates are made in backward it never has them all; but it has
        the activations of the whole window, which are taken for as many times those of a micro-batch.
        """
        whole = self._known(last.techniques, self._sizes[0])
        if whole is not None:
            return whole.fits
        if self._keeps_host_full(last):
            return False
        phases = (last.prediction.peak_by_phase or {"": last.prediction.peak_by_kind}).values()
        activations = max(kinds.get("activations", 0) for kinds in phases)
        remains = last.lasting - last.prediction.peak_by_kind.get("gradients", 0)
        return remains + activations * self.rows / last.micro_batch <= self.budget.usable

    def _keeps_host_full(self, one: Candidate) -> bool:
        """Return whether what lasts takes more of the host than there is, whatever else is placed."""
        full = one.prediction.host_peak_bytes > (self.budget.host_bytes or math.inf)
        return full and not offloads_activations(one.techniques)

    def _overfills_host(self, added: Techniques) -> bool:
        """Return whether a set of rungs leaves on the host what does not fit there with fewer placements."""
        mine = self._techniques(added)
        return any(
            self._keeps_host_full(each) and adds_placements(each.techniques, mine) for each in self.tried
        )

    def _fits_in_no_size(self, one: Candidate) -> bool:
        """Return whether this is a set of rungs in the smallest micro-batches that fits neither in them nor in others."""
        return not one.fits and one.micro_batch == self._sizes[-1] and not self._may_fit_whole(one)

    def _is_known_to_fit_in_no_size(self, added: Techniques) -> bool:
        last = self._known(self._techniques(added), self._ends[1])
        return last is not None and self._fits_in_no_size(last)

    def _may_be_better(self, added: Techniques) -> bool:
        """Return whether a set of rungs may be the choice, by what is known of sets with fewer placements and with more."""
        mine = self._techniques(added)
        host = self.budget.host_bytes
        if self._has_no_room(added):
            return False
        return self._may_be_faster(added) and not any(
            self._fits_in_no_size(each) and saves_less(mine, each.techniques)
            for each in self.tried
            if host is None or each.prediction.host_peak_bytes <= host
        )

    def _needs_no_less(self, added: Techniques, least: Candidate) -> bool:
        """Return whether a set of rungs needs as much as a plan, whatever its micro-batch is, as sets that keep as much, or less, tell.

        One pass may need less than several where the step is made in backward, so that gradients never stand there whole.
        """
        mine, bytes = self._techniques(added), least.prediction.most_bytes
        if self._least_bytes.get(lasting_of(mine), 0) >= bytes:
            return True
        if any(Stage.WHEN in each.card.stages for each in mine):
            return False
        smallest = (each for each in self.tried if each.micro_batch == self._sizes[-1])
        return any(
            each.prediction.most_bytes >= bytes and saves_less(mine, each.techniques) for each in smallest
        )

    def _may_be_faster(self, added: Techniques, leeway: float = 1.0) -> bool:
        """Return whether a set of rungs may be fast enough to be the choice, by its arithmetic and by sets that are no slower.

        Args:
            leeway: times the seconds below which it would be.
        """
        mine, limit = self._techniques(added), leeway * self._limit(self.level(added))
        known = (seconds for other, seconds in self._least_seconds.items() if takes_longer(other, mine))
        return self.least_seconds(added) < limit and all(seconds < limit for seconds in known)

    def least_seconds(self, added: Techniques) -> float:
        """Return seconds that an update takes at least, by passes of one kind without placements, by those whose step is the same, and by sets with a placement more."""
        techniques = self._techniques(added)
        passes = self._arithmetic_of(techniques)
        if not self._on_cpu:  # whose caches make smaller micro-batches faster
            known = self._pass_seconds.get(kind_of_passes(techniques), 0.0)
            passes = max(passes, _ALIKE_PASSES * known)
        same, alike = (self._step_seconds.get(each) for each in kinds_of_step(techniques))
        by_kind = passes + (same if same is not None else _ALIKE_STEPS * (alike or 0.0))
        return max(by_kind, self._least_seconds_without_a_placement(techniques))

    def _least_seconds_without_a_placement(self, techniques: Techniques) -> float:
        """Return seconds by sets with a placement of activations more, less what that takes at most where it is known; 0 where none is."""
        least = 0.0
        for other, seconds in self._least_seconds.items() if not self._on_cpu else ():
            if (rung := _placed_more(techniques, other)) is not None:
                most = self._placement_seconds.get((lasting_of(techniques), rung), math.inf)
                least = max(least, seconds - _TIMES_SEEN * most)
        return least

    def _has_no_room(self, added: Techniques) -> bool:
        """Return whether a set of rungs fits in no micro-batch, by what lasts on the device or on the host."""
        return self._keeps_too_much(added) or self._overfills_host(added)

    def _keeps_too_much(self, added: Techniques) -> bool:
        """Return whether weights and states, or the step, take more than there is, whatever is done to activations."""
        return self.lasting_bytes(added) > self.budget.usable or self._is_too_heavy(added)

    def lasting_bytes(self, added: Techniques) -> int:
        """Return a lower bound of the device's bytes that a set of rungs takes, whatever is done to activations; 0 where none is known."""
        mine = self._techniques(added)
        return max(self._least_bytes.get(lasting_of(mine), 0), self._state_bytes.get(states_of(mine), 0))

    def _is_too_heavy(self, added: Techniques) -> bool:
        """Return whether weights alone do not fit that are in the format of these."""
        return not streams(added) and self._weights_of(added) in self._too_heavy

    def _weights_of(self, added: Techniques) -> frozenset[Technique]:
        return format_of_weights(self._techniques(added))

    def _keep(self, techniques: Techniques, size: int, prediction: Prediction) -> Candidate:
        made = super()._keep(techniques, size, prediction)
        self._note_bytes(made)
        self._note_seconds(made)
        return made

    def _note_seconds(self, one: Candidate) -> None:
        """Keep the least seconds of a set of rungs that was tried in one pass, of its passes alone, and of its step."""
        techniques, step = one.techniques, one.prediction.step_seconds
        for kind in kinds_of_step(techniques):
            self._step_seconds[kind] = min(step, self._step_seconds.get(kind, math.inf))
        known = self._least_seconds.get(techniques, math.inf)
        # a window in many passes says nothing of one in few
        if one.micro_batch == self._sizes[0] or known < math.inf:
            self._least_seconds[techniques] = seconds = min(known, self._least_time(one))
            self._note_placements(techniques)
            if placements_of(techniques) == placements_of(self.asked.techniques):
                passes = kind_of_passes(techniques)
                self._pass_seconds[passes] = min(seconds - step, self._pass_seconds.get(passes, math.inf))

    def _note_placements(self, techniques: Techniques) -> None:
        """Keep what placements of activations take, of which a set has one more or one less than others that were tried."""
        for other in self._least_seconds:
            for fewer, more in ((techniques, other), (other, techniques)):
                if (rung := _placed_more(fewer, more)) is not None:
                    key = lasting_of(fewer), rung
                    taken = self._least_seconds[more] - self._least_seconds[fewer]
                    self._placement_seconds[key] = max(taken, self._placement_seconds.get(key, 0.0))

    def _least_time(self, one: Candidate) -> float:
        """Return the least seconds of a plan, however many of its blocks stay on the device."""
        sized = self._sized.get(one.techniques) if streams(self._added(one)) else None
        filled = sized.staying(one.micro_batch, max(0, self.planner.depth - 2)) if sized is not None else None
        return (filled or one.prediction).seconds_per_update

    def _note_bytes(self, one: Candidate) -> None:
        """Keep the weights and states at the peak of a plan that was tried, and what its step takes: no activations are there then."""
        kinds, lasting = one.prediction.peak_by_kind, lasting_of(one.techniques)
        if kinds.get("weights", 0) > self.budget.usable and not streams(one.techniques):
            self._too_heavy.add(format_of_weights(one.techniques))
        there, states = kinds.get("weights", 0) + kinds.get("optimizer", 0), states_of(one.techniques)
        self._state_bytes[states] = max(there, self._state_bytes.get(states, 0))
        step = one.prediction.peak_by_phase.get("optimizer", {})
        other = ("activations",) if one.micro_batch == self.rows else ("activations", "gradients")
        most = sum(step.values()) - sum(step.get(kind, 0) for kind in other)  # one pass may have no gradients
        self._least_bytes[lasting] = max(there, most, self._least_bytes.get(lasting, 0))

    def _limit(self, level: Fidelity) -> float:
        return self.goal.limit(level, [*self._allowed(), *self.rivals])

    def arithmetic(self, added: Techniques) -> float:
        """Return seconds that an update takes at least: its arithmetic, at the highest rate that the device reaches in the set's precision."""
        return self._arithmetic_of(self._techniques(added))

    def _arithmetic_of(self, techniques: Techniques) -> float:
        device = self.planner.machine.device
        rate = device.flops.get(number_type(techniques), math.inf)
        if not device.calibrated:
            rate *= device.efficiency["matmul"]
        return self._flops(techniques) / rate

    def _flops(self, techniques: Techniques) -> float:
        """Return a lower bound of an update's operations.

        It is that of plans that were tried, freeze as much and have no other placements, of which some compute what others keep; the
        recipe's own is one of them where the adapters are its own.
        """
        frozen, placed = freezes(techniques), placements_of(techniques)
        least: dict[frozenset[Technique], float] = {}
        for each in self.tried:
            places = placements_of(each.techniques)
            if freezes(each.techniques) == frozen and places <= placed:
                flops = each.prediction.flops_per_update
                least[places] = min(flops, least.get(places, math.inf))
        if not least:
            return _FORWARD * self.asked.prediction.flops_per_update
        return _ALIKE_FLOPS * max(least.values())


def _placed_more(fewer: Techniques, more: Techniques) -> Technique | None:
    """Return the placement of activations that is all that a set has beyond another; None where it has more, or something else.

    Nor is it known of sets that have activations on the host: what is placed beside these leaves less to copy, or more to do meanwhile.
    """
    if len(more) != len(fewer) + 1 or not adds_placements(fewer, more):
        return None
    if offloads_activations(more) or lasting_of(fewer) != lasting_of(more):
        return None
    return next(each for each in more if each not in fewer)
