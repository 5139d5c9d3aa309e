"""The choice: the fastest plan that fits, no coarser than the recipe allows, and for each other one the number that rejected it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from snugfit.core.entry import as_entry
from snugfit.core.job import AUTO, Plan
from snugfit.core.selection import check
from snugfit.core.technique import Family, Fidelity, Technique
from snugfit.errors import SnugfitError
from snugfit.planner.answer import Alternative, Choice, Prediction, Rejected
from snugfit.planner.predict import Planner
from snugfit.techniques import discover
from snugfit.training.fit import sizes
from snugfit.units import format_bytes, format_seconds

MARGIN = 0.05
"""Share of the budget that is left free: for what a device takes that no one asked for."""

_NOTICED = 0.99
"""A rung that leaves more than this of the peak saves nothing worth its time."""


@dataclass(frozen=True)
class Budget:
    """What a run may take: bytes of the device and of the host, and how coarse its numbers may be."""

    memory_bytes: int
    host_bytes: int | None = None
    fidelity: Fidelity = Fidelity.FULL
    margin: float = MARGIN

    def holds(self, found: Prediction) -> bool:
        """Whether a plan that needs this fits, with the margin."""
        host = self.host_bytes is None or found.host_peak_bytes <= self.host_bytes
        return host and found.reserved_bytes <= self.usable

    @property
    def usable(self) -> int:
        return round(self.memory_bytes * (1 - self.margin))


@dataclass(frozen=True)
class Candidate:
    """A plan that was tried."""

    techniques: tuple[Technique, ...]
    micro_batch: int
    added: tuple[str, ...]
    found: Prediction
    fits: bool

    @property
    def rung(self) -> str:
        """In words: what it adds to the recipe, and the micro-batch."""
        return " + ".join([*(self.added or ("as the recipe says",)), f"micro-batch {self.micro_batch}"])

    def same(self, other: Candidate | None) -> bool:
        """Whether it is the same plan."""
        return other is not None and (self.techniques, self.micro_batch) == (
            other.techniques,
            other.micro_batch,
        )


@dataclass
class Search:
    """Tries plans for one subject, and keeps what it found.

    Args:
        planner: predicts.
        plan: as the recipe has it; a micro-batch that it names stays.
        deadline: a time of `time.monotonic` after which no further rung is tried.
    """

    planner: Planner
    plan: Plan
    budget: Budget
    deadline: float
    tried: list[Candidate] = field(default_factory=list)
    refused: list[Rejected] = field(default_factory=list)

    def best(self) -> Candidate | None:
        """The fastest plan that fits at the finest level at which any does; None where none does."""
        own = self.planner.subject.techniques
        level = max((each.card.fidelity for each in own), default=Fidelity.FULL)
        starts = [own]
        for fidelity in Fidelity:
            if fidelity > max(level, self.budget.fidelity):
                break
            if fidelity > level:
                starts += [(*start, *more) for start in starts for more in self._coarser(start, fidelity)]
            fitting = [found for start in starts if (found := self._fastest(start)) is not None]
            if fitting:
                return min(fitting, key=lambda each: each.found.seconds_per_update)
        return None

    def needed(self) -> dict[str, int]:
        """The smallest memory in bytes at which something fits, by the level of fidelity, among all that was tried."""
        found: dict[str, int] = {}
        for each in self.tried:
            level = max(
                (technique.card.fidelity for technique in each.techniques), default=Fidelity.FULL
            ).label
            least = round(each.found.reserved_bytes / (1 - self.budget.margin))
            found[level] = min(found.get(level, least), least)
        return found

    def _fastest(self, own: tuple[Technique, ...]) -> Candidate | None:
        """From these techniques alone, then with what saves memory beside them, until something fits; then whether more of it is
        faster, as larger micro-batches come in."""
        fitting: list[Candidate] = []
        plain = self._largest(own, ())
        if plain is not None and plain.micro_batch == self._rows:
            return plain
        fitting += [plain] if plain is not None else []
        singles = self._singles(own, self._rows if plain is not None else None)
        for rung, _ in singles:
            if (found := self._largest(own, (rung,))) is not None:
                fitting.append(found)
        chain: tuple[Technique, ...] = ()
        for rung, _ in singles:  # the one that saves most first
            if any(type(rung) is type(each) for each in chain) or not self._legal(own, (*chain, rung)):
                continue
            chain = (*chain, rung)
            if len(chain) > 1 and (found := self._largest(own, chain)) is not None:
                fitting.append(found)
            if time.monotonic() > self.deadline:
                break
        return min(fitting, key=lambda each: each.found.seconds_per_update, default=None)

    def _singles(self, own: tuple[Technique, ...], size: int | None) -> list[tuple[Technique, int]]:
        """What saves memory beside these techniques, each by itself, with the bytes that are left; the best first.

        Looked at in micro-batches of `size`, where there is a size that fits and larger ones are wanted; otherwise in the smallest.
        """
        plain = self._least(own, ()) if size is None else self._predict(own, (), size)
        if plain is None:
            return []
        found = []
        for rung in self._rungs(own):
            one = self._predict(own, (rung,), plain.micro_batch)
            if one is None:
                continue
            if one.found.reserved_bytes > plain.found.reserved_bytes * _NOTICED:
                saved = plain.found.reserved_bytes - one.found.reserved_bytes
                self._reject(one.rung, f"saves {format_bytes(max(0, saved))}", one.found.reserved_bytes)
            else:
                found.append((rung, one.found.reserved_bytes))
        return sorted(found, key=lambda pair: pair[1])

    def _rungs(self, own: tuple[Technique, ...]) -> Iterator[Technique]:
        """Placements that save memory and go with these techniques."""
        for technique in discover().values():
            if technique.card.family is Family.PLACEMENT:
                yield from (rung for rung in technique.rungs() if self._legal(own, (rung,)))

    def _coarser(self, own: tuple[Technique, ...], fidelity: Fidelity) -> Iterator[tuple[Technique, ...]]:
        """What this level of fidelity adds to these techniques."""
        for technique in discover().values():
            card = technique.card
            if card.fidelity is not fidelity or (
                card.needs and card.needs not in self.planner.machine.device.flops
            ):
                continue
            yield from ((rung,) for rung in technique.rungs() if self._legal(own, (rung,)))

    def _legal(self, own: Sequence[Technique], added: Sequence[Technique]) -> bool:
        try:
            check(_together(own, added))
        except SnugfitError as refusal:
            self._reject(" + ".join(each.card.name for each in added), str(refusal), None)
            return False
        return True

    def _largest(self, own: tuple[Technique, ...], added: tuple[Technique, ...]) -> Candidate | None:
        """With the largest micro-batch that fits; None where none does.

        The peak is the highest of straight lines, so between two sizes it is below the line through them.
        """
        whole = self._predict(own, added, self._sizes[0])
        if whole is None or whole.fits:
            return whole
        smallest = self._least(own, added)
        if smallest is None or not smallest.fits:
            return None
        low, high = smallest, whole
        best = smallest
        for _ in range(2):
            slope = (high.found.reserved_bytes - low.found.reserved_bytes) / (
                high.micro_batch - low.micro_batch
            )
            room = low.micro_batch + (self.budget.usable - low.found.reserved_bytes) / max(slope, 1e-9)
            size = next((each for each in self._sizes if each <= room), low.micro_batch)
            if size <= low.micro_batch:
                break
            tried = self._predict(own, added, size)
            if tried is None or not tried.fits:
                break
            low = best = tried
        return best

    def _least(self, own: tuple[Technique, ...], added: tuple[Technique, ...]) -> Candidate | None:
        """With the smallest micro-batch that it can be run with: examples that are mixed in groups stay together."""
        found = (self._predict(own, added, size) for size in self._sizes[:-4:-1])
        return next((each for each in found if each is not None), None)

    def _predict(
        self, own: tuple[Technique, ...], added: tuple[Technique, ...], micro_batch: int
    ) -> Candidate | None:
        """A plan, tried once; None where it cannot be run, and why is kept."""
        techniques = tuple(_together(own, added))
        names = _added(techniques, self.planner.subject.techniques)
        for known in self.tried:
            if known.techniques == techniques and known.micro_batch == micro_batch:
                return known
        try:
            found = self.planner.predict(replace(self.plan, micro_batch=micro_batch), techniques, rough=True)
        except SnugfitError as refusal:
            self._reject(" + ".join(names), str(refusal), None)
            return None
        made = Candidate(techniques, micro_batch, names, found, self.budget.holds(found))
        self.tried.append(made)
        return made

    @property
    def _rows(self) -> int:
        return self.planner.subject.window.rows

    @property
    def _sizes(self) -> list[int]:
        """Micro-batches that are tried, the largest first."""
        if self.plan.micro_batch not in (None, AUTO):
            return [int(self.plan.micro_batch)]
        return [self._rows] if self.planner.fixed_micro_batch else sizes(self._rows)

    def _reject(self, rung: str, reason: str, bytes: int | None) -> None:
        if all(each.rung != rung for each in self.refused):
            self.refused.append(Rejected(rung, reason, bytes))


def _together(own: Sequence[Technique], added: Sequence[Technique]) -> list[Technique]:
    """All of them; one that may stand in the place of another does."""
    found = list(own)
    for each in added:
        place = next((n for n, other in enumerate(found) if each.in_place_of(other) is not None), None)
        if place is None:
            found.append(each)
        else:
            found[place] = each.in_place_of(found[place]) or each
    return found


def _added(techniques: Sequence[Technique], own: Sequence[Technique]) -> tuple[str, ...]:
    return tuple(_told(each) for each in techniques if each not in own)


def _told(technique: Technique) -> str:
    """A technique with the settings that are not its defaults."""
    (settings,) = as_entry(technique).values()
    usual = {each.name: each.default for each in dataclasses.fields(technique)}  # type: ignore[arg-type]
    own = {name: value for name, value in settings.items() if value != usual.get(name)}
    return f"{technique.card.name} {own}" if own else technique.card.name


def describe(candidate: Candidate, plan: Plan) -> Choice:
    """A plan as an answer has it."""
    precision = [each.card.name for each in candidate.techniques if each.card.precision]
    level = max((each.card.fidelity for each in candidate.techniques), default=Fidelity.FULL)
    return Choice(
        micro_batch=candidate.micro_batch,
        numerics=" ".join(precision) or "fp32",
        techniques=tuple(as_entry(each) for each in candidate.techniques),
        added=candidate.added,
        fidelity=level.label,
    )


def alternatives(search: Search, chosen: Candidate | None) -> tuple[Alternative, ...]:
    """The runners-up: what fits too, the fastest first."""
    others = [each for each in search.tried if each.fits and not each.same(chosen)]
    others.sort(key=lambda each: each.found.seconds_per_update)
    return tuple(
        Alternative(
            each.rung,
            describe(each, search.plan),
            each.found.peak_bytes,
            each.found.reserved_bytes,
            each.found.seconds_per_update,
        )
        for each in others
    )


def rejected(search: Search) -> tuple[Rejected, ...]:
    """What does not fit, with by how much, and what was refused, with the reason."""
    usable = search.budget.usable
    over = [
        Rejected(
            each.rung,
            f"needs {format_bytes(each.found.reserved_bytes)} of {format_bytes(usable)}",
            each.found.reserved_bytes,
            each.found.seconds_per_update,
        )
        for each in search.tried
        if not each.fits
    ]
    return (*over, *search.refused)


def faster(chosen: Candidate, search: Search) -> str:
    """Why the choice is the choice, in a sentence."""
    others = [each for each in search.tried if each.fits and not each.same(chosen)]
    if not others:
        return "Nothing else that was tried fits."
    second = min(others, key=lambda each: each.found.seconds_per_update)
    return (
        f"The fastest of {len(others) + 1} plans that fit: {format_seconds(chosen.found.seconds_per_update)} an update, and "
        f"{format_seconds(second.found.seconds_per_update)} with {second.rung}."
    )
