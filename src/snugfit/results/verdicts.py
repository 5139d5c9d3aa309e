"""The results of certifying: each law with its error, its bound and the verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from snugfit.results.shown import Shown


class Verdict(StrEnum):
    """A law holds, is broken, or is not to be expected of this training, for a reason that is said."""

    HELD = "held"
    BROKEN = "broken"
    EXEMPT = "exempt"


TITLES: Mapping[str, str] = {
    "accumulation": "accumulation = full batch",
    "recompute": "recompute = none",
    "resume": "resume = uninterrupted",
    "skip": "a skipped window changes nothing",
    "ranks": "2 ranks = 1",
    "card": "the card says what it fills",
    "order": "beside others, in any order",
    "placement": "with it = without it",
    "oracle": "trains as its oracle",
}
"""The laws by name, as equations; the last four are of techniques alone."""


@dataclass(frozen=True)
class Trial:
    """A way of computing the same: how far its gradient and its weights after the update are off, at most."""

    what: str
    error: float
    worst: str = ""


@dataclass(frozen=True)
class Law:
    """A law, tried.

    Args:
        name: of `TITLES`.
        error: the largest relative error of a tensor; None where nothing could be computed.
        bound: up to which the law counts as held; 0 where every bit has to be the same.
        worst: the tensor that is the furthest off.
        module: where outputs begin to differ, if that could be found.
        reasons: why it is exempt, or what is known about why it is broken.
        trials: what was compared.
    """

    name: str
    verdict: Verdict
    error: float | None
    bound: float
    worst: str = ""
    module: str = ""
    reasons: tuple[str, ...] = ()
    trials: tuple[Trial, ...] = ()

    @property
    def title(self) -> str:
        return TITLES[self.name]

    @property
    def figures(self) -> str:
        """Error and bound, as they are printed."""
        if self.error is None:
            return ""
        if self.error == math.inf:
            return "not comparable"
        if self.bound == 0:
            return "the same bit for bit" if self.error == 0 else f"error {self.error:.1e}, must be 0"
        error = f"{self.error:.1e}" if self.error else "0"
        return f"error {error}, bound {self.bound:.0e}"


@dataclass(frozen=True, repr=False)
class Certificate(Shown):
    """The laws, tried on one model and its data.

    Args:
        dtype: what it was computed in.
        rows: examples of each window.
        conditions: what else has to be known to read the errors, in sentences.
    """

    name: str
    laws: tuple[Law, ...]
    dtype: str
    device: str
    rows: int
    micro_batch: int | None
    conditions: tuple[str, ...]
    seconds: float

    @property
    def broken(self) -> tuple[Law, ...]:
        """The laws that do not hold."""
        return tuple(law for law in self.laws if law.verdict is Verdict.BROKEN)

    @property
    def summary(self) -> str:
        """Return how many laws there are of each verdict, and the names of those that are broken."""
        count = Counter(str(law.verdict) for law in self.laws)
        counts = ", ".join(f"{number} {verdict}" for verdict, number in count.items())
        return f"{counts}: {', '.join(law.title for law in self.broken)}" if self.broken else counts

    def summary_lines(self) -> list[str]:
        """Return each law with its verdict and error."""
        laws = [f"  {law.title:<34} {law.verdict:<7} {law.figures}".rstrip() for law in self.laws]
        return [f"Certificate of {self.name}: {self.summary}", *laws]

    def law(self, name: str) -> Law:
        """Return one of them by name."""
        return next(law for law in self.laws if law.name == name)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        laws = [{**asdict(law), "verdict": str(law.verdict), "title": law.title} for law in self.laws]
        for each in [*laws, *(trial for law in laws for trial in law["trials"])]:
            if each["error"] == math.inf:  # for which JSON has no number
                each["error"] = "Infinity"
        return {**asdict(self), "laws": laws, "broken": [law.name for law in self.broken]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Certificate:
        """Return what `as_dict` gave, as after JSON."""
        laws = tuple(
            Law(
                **{
                    **{key: value for key, value in law.items() if key != "title"},
                    "verdict": Verdict(law["verdict"]),
                    "error": None if law["error"] is None else float(law["error"]),
                    "reasons": tuple(law["reasons"]),
                    "trials": tuple(Trial(t["what"], float(t["error"]), t["worst"]) for t in law["trials"]),
                }
            )
            for law in values["laws"]
        )
        rest = ("name", "dtype", "device", "rows", "micro_batch", "seconds")
        return cls(**{key: values[key] for key in rest}, laws=laws, conditions=tuple(values["conditions"]))
